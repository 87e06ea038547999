"""The states of runs: evidence from disk and one query of the cluster."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcrun import activity, shared_look
from hpcrun.errors import BrokenFile, HpcrunError
from hpcrun.fields import TIME, WHOLE, Kinds, wrong
from hpcrun.observe.read import metric_curves
from hpcrun.observe.read.metric_curves import Latest
from hpcrun.observe.read.selection import Selected, have_begun
from hpcrun.observe.status import run_state, slurm_cache
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.observe.status.run_state import RunEvidence, Verdict
from hpcrun.policy import causes, next_attempt
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.slurm import patience as slurm_patience
from hpcrun.slurm.queue import GONE, JobMark, JobState
from hpcrun.state import chosen_point, files, layout, ledger
from hpcrun.state.journal import SUBMITTED
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.role_plan import ROLES
from hpcrun.text import Say, age, one_line, range_text, shortened, timestamp

Ask = Callable[[Sequence[JobRef]], Answers]

# Of more runs than this, fewer lines are read.
_MANY, _LITTLE_PATIENCE = 1000, 1
_WITH_CAUSE = frozenset(
    {run_state.FAILED, run_state.REQUEUED, run_state.RESTARTING, run_state.UNKNOWN}
)
_QUEUED = (run_state.PENDING, run_state.REQUEUED)
_ROLE_EVENTS = (ledger.RESTARTED, ledger.MOVED, ledger.IGNORED)
_GPU: Kinds = {"memory": WHOLE, "memory_total": WHOLE}
_AGENT_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d hpcrun: (\S.*)$", re.MULTILINE)
# Bytes of a log, logs that are looked at, and characters that are shown.
_AGENT_TAIL, _MOST_AGENTS, _MOST_SHOWN = 2_000, 64, 200


@dataclass(frozen=True)
class RunStatus:
    """One run of ``status --json``; None stands for unknown."""

    experiment: str
    run: int
    state: str
    """One of `run_state.STATES`."""
    attempt: int | None
    """The newest attempt's number."""
    step: int | None
    total_steps: int | None
    """Finished optimizer steps, and how many there will be."""
    swept: dict[str, Any]
    """Full key -> swept value."""
    metrics: dict[str, float] | None
    """The newest values."""
    job_id: str | None
    """``123``, ``123_4`` or ``local:PID``."""
    nodes: list[str] | None
    """Names of the nodes of the newest attempt, while it holds them or held them last."""
    cause: dict[str, Any] | None
    """Why the newest attempt ended badly, from the ledger, without the log's tail."""
    reason: str | None
    """Explains the state in words, where necessary."""
    updated: float | None
    """Time of the newest of all this on disk, in seconds since the epoch."""
    directory: str
    """The run's directory; exists once an attempt began."""
    label: str
    """A readable name made of the swept values."""
    over: bool
    """Nothing more will happen to the run by itself."""
    previous_cause: str | None = None
    """The kind of cause (`hpcrun.policy.causes`) of the attempt before the newest one."""
    tokens_per_second: float | None = None
    """While it runs."""
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    """Bytes, of the fullest GPU of its first node, while it runs."""
    remaining: float | None = None
    """Estimated seconds that are left, while it runs."""
    queued: float | None = None
    """Seconds that it has waited, while it waits in the queue."""
    spare_nodes: list[str] | None = None
    """Names of the nodes that stand by beside these; they are paid for too."""
    tags: Sequence[str] = ()
    notes: Sequence[dict[str, Any]] = ()
    """The notes of people: the ``text``, ``user`` and ``time`` of each note, oldest first."""
    submitted: float | None = None
    """When it was submitted last, in seconds since the epoch."""
    roles: dict[str, dict[str, Any]] | None = None
    """Role -> its ``ranks``, and how often they were restarted, moved or given up in this attempt;
    None where the run has none."""

    parent: str | None = None
    """Of a search's population, the run and step that it began from, as ``3@200``."""

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.run}"

    @property
    def last_cause(self) -> str | None:
        """The kind of cause of the newest attempt, or of the one before in a run that goes on."""
        return (self.cause or {}).get("kind") or (None if self.over else self.previous_cause)

    @property
    def age(self) -> float | None:
        """Seconds since the last sign of a run that is over; of another, since its submission."""
        since = self.updated if self.over else self.submitted
        return None if since is None else time.time() - since

    def to_data(self) -> dict[str, Any]:
        """Return plain data, without ``roles`` and ``parent`` where there are none."""
        absent = [name for name in ("roles", "parent") if getattr(self, name) is None]
        return {name: value for name, value in vars(self).items() if name not in absent}


class Observed(NamedTuple):
    """A run's state, and the attempts on its ledger that it follows from."""

    status: RunStatus
    attempts: Sequence[Attempt]


def statuses(
    selected: Sequence[Selected],
    *,
    warn: Say = lambda message: None,
    ask: Ask = slurm_cache.ask,
    values: bool = True,
) -> list[RunStatus]:
    """Return the state of each run (see `observe`)."""
    return [one.status for one in observe(selected, warn=warn, ask=ask, values=values)]


def observe(
    selected: Sequence[Selected],
    *,
    warn: Say = lambda message: None,
    ask: Ask = slurm_cache.ask,
    values: bool = True,
) -> list[Observed]:
    """Return the state of each run, in the order given, with one query of the cluster.

    ``warn`` is called when Slurm does not answer; the states are then those on disk, and Slurm's
    last answers. ``values`` reads steps and metrics too.
    """
    there = [*zip(selected, have_begun(selected), strict=True)]
    looks = shared_look.each(_read, [one for one, is_there in there if is_there])
    found = [
        next(looks) if is_there else RunEvidence(one.submission, [])
        for one, is_there in activity.count(there, "reading ledgers")
    ]
    refs = [_ref(one, evidence) for one, evidence in zip(selected, found, strict=True)]
    answers = ask([ref for ref in refs if ref is not None])
    patience = metric_curves.PATIENCE if len(found) <= _MANY else _LITTLE_PATIENCE
    result = []
    each = [*zip(selected, found, refs, strict=True)]
    for one, evidence, ref in activity.count(each, "reading runs"):
        latest, problem = Latest(), None
        if values and evidence.attempts:
            try:
                latest = _latest(one, evidence.attempts, patience)
            except BrokenFile as error:
                problem = error.message
        evidence, verdict = _decide(one, evidence, ref, answers, latest.time)
        verdict = verdict.with_reason(problem)
        result.append(Observed(_status(one, evidence, verdict, latest), evidence.attempts))
    if answers.problem:
        warn(_silence(answers, [one.status for one in result]))
    return result


def deciding_job(selected: Selected) -> JobRef | None:
    """Return the job that decides about a run; None if there is none or the disk decides."""
    return _ref(selected, _read(selected))


def _read(selected: Selected) -> RunEvidence:
    try:
        attempts = ledger.read(selected.paths)
        evidence = RunEvidence(selected.submission, attempts)
        current = evidence.current
        if current is not None and current.outcome in causes.GOOD_ENDS:
            # The intent adds nothing.
            return evidence
        return RunEvidence(selected.submission, attempts, ledger.intent(selected.paths))
    except BrokenFile as error:
        return RunEvidence(selected.submission, broken=error.message)


def _latest(selected: Selected, attempts: Sequence[Attempt], patience: int) -> Latest:
    numbers = [attempt.number for attempt in attempts]
    found = metric_curves.read_recorded(attempts) or metric_curves.latest(
        selected.paths, numbers, patience=patience
    )
    return found.bounded()


def _ref(selected: Selected, evidence: RunEvidence) -> JobRef | None:
    if evidence.intent in ledger.GOOD_ENDS or evidence.broken:
        return None
    submission, current = evidence.submission, evidence.current
    if current is not None and current.outcome in (*causes.GOOD_ENDS, causes.CANCELLED):
        return None
    if current is not None and current.ended and evidence.intent == ledger.CANCELLED:
        return None
    other = str(current.job_id or "") if current is not None else ""
    if current is not None and other and (submission is None or submission.job_id != other):
        return JobRef(other, current.started.get("host"), mark=_mark(selected, current))
    if submission is None or submission.event != SUBMITTED or not submission.job_id:
        return None
    if submission.ended:
        return None
    record = submission.record
    mark = JobMark(submission.paths.directory, submission.allocation_since)
    return JobRef(submission.job_id, record.get("host"), record.get("start_ticks"), mark)


def _mark(selected: Selected, attempt: Attempt) -> JobMark | None:
    """Return the mark of an attempt's job, which another submission than the newest may have."""
    number = attempt.submission
    if number is None:
        return None
    return JobMark(selected.experiment.submission(number).directory, attempt.began)


def _silence(answers: Answers, found: Sequence[RunStatus]) -> str:
    """Return the warning that Slurm did not answer: what is shown, its age, and what to type."""
    known = [job.known_at for job in answers.jobs.values() if job.known_at is not None]
    written = [one.updated for one in found if one.updated is not None]
    some = "" if len(known) == len(answers.jobs) else "some "
    what = f"{some}states" if known else "showing what is on disk,"
    since = min(known) if known else max(written, default=None)
    old = f" as of {timestamp(since)}, {age(time.time() - since)} ago" if since else ""
    lines = [line.strip() for line in (answers.detail or "").splitlines() if line.strip()]
    lines[2:] = ["…"] * (len(lines) > 2)
    if slurm_patience.current().limit is not None:
        lines.append(f"to wait longer for Slurm: {slurm_patience.VARIABLE}=60 before the command")
    return "\n  ".join([f"warning: {answers.problem}; {(what + old).rstrip(',')}", *lines])


def _decide(
    selected: Selected,
    evidence: RunEvidence,
    ref: JobRef | None,
    answers: Answers,
    logged: float | None,
) -> tuple[RunEvidence, Verdict]:
    """Decide; if the job is over, read the disk again, as the end may just have been recorded."""
    before = evidence
    evidence = _with_answer(evidence, ref, answers, logged)
    job = evidence.job
    if ref is not None and (job is None or job.is_over) and evidence.silence is None:
        again = _read(selected)
        if (again.attempts, again.intent) != (before.attempts, before.intent):
            evidence = _with_answer(again, ref, answers, logged)
    return evidence, run_state.decide(evidence)


def _with_answer(
    evidence: RunEvidence, ref: JobRef | None, answers: Answers, logged: float | None
) -> RunEvidence:
    submission = evidence.submission
    moments = [submission.time] if submission else []
    moments += [logged] if logged else []
    for last in evidence.attempts[-1:]:
        recorded = (last.began, last.end.get("time"), last.workers_started)
        moments += [float(moment) for moment in recorded if moment]
    updated = max(moments, default=None)
    if ref is not None:
        job, silence = answers.state_of(ref), answers.silence(ref.job_id)
    else:
        is_gone = submission is not None and submission.ended
        job, silence = JobState("", GONE) if is_gone else None, evidence.silence
    unseen = job is not None and job.has_just_completed
    # Not `replace`, which takes as long as all the rest, thousands of times.
    return RunEvidence(
        *(submission, evidence.attempts, evidence.intent, job, silence, updated),
        *(unseen, evidence.broken),
    )


def _status(
    selected: Selected, evidence: RunEvidence, verdict: Verdict, latest: Latest
) -> RunStatus:
    attempts, submission = evidence.attempts, evidence.submission
    last = attempts[-1] if attempts else None
    if verdict.state == run_state.CANCELLED and last is None and (unmet := _unmet(selected)):
        verdict = verdict.with_reason(f"{unmet}, which it depends on, has not completed", ": ")
    if last is None and verdict.over and (there := selected.paths.attempts()):
        reason = f"{selected.paths.ledger} is gone, which told how attempt {there[-1].number} ended"
        state = verdict.state if verdict.state != run_state.FAILED else run_state.UNKNOWN
        verdict = replace(verdict, state=state, reason=reason)
    if last and verdict.reason == run_state.PREPARING:
        verdict = verdict.with_reason(_preparation(selected.paths.attempt(last.number)), ": ")
    if last and last.roles and not verdict.over:
        verdict = verdict.with_reason(ledger.roles_summary(last.roles))
    verdict = verdict.with_reason(next_attempt.left_out_words(attempts))
    cause = last.cause if last and verdict.state in _WITH_CAUSE else {}
    nodes, spares = (last.nodes, last.spare_nodes) if last else (None, None)
    if evidence.job is not None and evidence.current is None:
        nodes, spares = _names(evidence.job.nodes), None
    job_id = submission.job_id if submission else None
    runs = verdict.state == run_state.RUNNING
    gpu = _gpu(selected, last) if last and runs and latest.time is not None else {}
    return RunStatus(
        experiment=selected.experiment.name,
        run=selected.run.number,
        state=verdict.state,
        attempt=last.number if last else None,
        step=latest.step,
        total_steps=latest.total_steps,
        swept=selected.run.swept,
        metrics=latest.values or None,
        job_id=job_id or (last.job_id if last else None),
        nodes=nodes,
        cause={key: cause[key] for key in cause if key != "log_tail"} or None,
        reason=verdict.reason,
        updated=evidence.updated,
        directory=str(selected.paths.directory),
        label=selected.run.label,
        over=verdict.over,
        previous_cause=attempts[-2].kind if len(attempts) > 1 else None,
        tokens_per_second=latest.tokens_per_second if runs else None,
        spare_nodes=spares,
        gpu_memory=gpu.get("memory"),
        gpu_memory_total=gpu.get("memory_total"),
        remaining=latest.remaining if runs else None,
        queued=_queued(evidence) if verdict.state in _QUEUED else None,
        submitted=(submission.time or None) if submission else None,
        roles=_roles(selected, last) if selected.run.spec.get(ROLES) else None,
        parent=chosen_point.parent_of(selected.run),
        **selected.annotation.to_data(),
    )


def _roles(selected: Selected, last: Attempt | None) -> dict[str, dict[str, Any]]:
    """Return the roles of a run, with the events of its newest attempt counted."""
    found: dict[str, dict[str, Any]] = {
        role.name: {"ranks": range_text(role.ranks), **dict.fromkeys(_ROLE_EVENTS, 0)}
        for role in selected.run.role_plans
    }
    for event in last.roles if last else ():
        if event["role"] in found and event["what"] in _ROLE_EVENTS:
            found[event["role"]][event["what"]] += 1
    return found


def _unmet(selected: Selected) -> str | None:
    """Return a run that this one needs and that has not completed."""
    for one in selected.plan.depends_on:
        before = layout.experiment(selected.experiment.root, one.experiment)
        for run in one.of(selected.run.number):
            with contextlib.suppress(BrokenFile):
                if one.when != "success" or ledger.intent(before.run(run)) in ledger.GOOD_ENDS:
                    continue
            return f"{one.experiment}/{run}"
    return None


def _gpu(selected: Selected, last: Attempt) -> dict[str, Any]:
    """Return the last sample of the first node's fullest GPU; empty without one."""
    nodes = last.nodes
    if not nodes:
        return {}
    lines = files.read_back(selected.paths.attempt(last.number).telemetry(str(nodes[0])), 4096)
    sample = next((line for line in lines if TIME.accepts(line.get("time"))), {})
    gpus = sample.get("gpus")
    valid = [
        gpu
        for gpu in (gpus if isinstance(gpus, list) else ())
        if isinstance(gpu, dict) and gpu.get("memory") is not None and not wrong(gpu, _GPU)
    ]
    return max(valid, key=lambda gpu: int(gpu["memory"]), default={})


def _queued(evidence: RunEvidence) -> float | None:
    """Return for how long a run that waits in the queue has done so."""
    if evidence.submission is None:
        return None
    current = evidence.current
    since = current.end.get("time") if current else evidence.submission.time
    return max(0.0, time.time() - float(since)) if since else None


def _names(nodes: str) -> list[str] | None:
    from hpcrun.slurm.hostlist import expand

    try:
        return list(expand(nodes)) or None
    except HpcrunError:
        return [nodes]


def _preparation(attempt: AttemptPaths) -> str | None:
    """Return what the agent that wrote last says, with its node; None before one says anything."""
    newest: tuple[float, str] | None = None
    with contextlib.suppress(OSError), os.scandir(attempt.directory) as entries:
        logs = [one for one in entries if one.name.startswith("agent-")]
        for entry in logs[:_MOST_AGENTS]:
            with contextlib.suppress(OSError):
                tail = files.read_tail(attempt.directory / entry.name, _AGENT_TAIL)
                said = _AGENT_LINE.findall(tail.decode(errors="replace"))
                when = entry.stat(follow_symlinks=False).st_mtime
                if said and (newest is None or when > newest[0]):
                    node = entry.name[len("agent-") :].removesuffix(".log")
                    newest = when, f"{node}: {said[-1]}"
    return None if newest is None else one_line(shortened(newest[1], _MOST_SHOWN))


def best_value(those: Sequence[tuple[Selected, RunStatus]]) -> dict[str, Any] | None:
    """Return the run whose last value of the objective is the best, with that value.

    The objective is that of the newest run's spec; None without one, and without a value.
    """
    objective = those[-1][0].run.spec.get("objective") if those else None
    if not isinstance(objective, dict) or objective.get("mode") not in ("min", "max"):
        return None
    metric, choose = str(objective.get("metric")), min if objective["mode"] == "min" else max
    logged = [
        (value, one.run.number)
        for one, status in those
        if (value := (status.metrics or {}).get(metric)) is not None and math.isfinite(value)
    ]
    if not logged:
        return None
    value, run = choose(logged, key=lambda pair: pair[0])
    return {"metric": metric, "mode": objective["mode"], "value": value, "run": run}
