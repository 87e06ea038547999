"""The state of runs: evidence from disk and one query of the cluster, merged."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcrun.errors import HpcrunError
from hpcrun.observe.read import metric_curves as metrics
from hpcrun.observe.read.history import SUBMITTED
from hpcrun.observe.read.selection import Selected, begun
from hpcrun.observe.status import jobs
from hpcrun.observe.status import run_state as state
from hpcrun.observe.status.jobs import Answers, Process
from hpcrun.observe.status.run_state import Evidence, Job, Verdict
from hpcrun.state import files, layout, ledger
from hpcrun.state.ledger import Attempt
from hpcrun.text import Say

Ask = Callable[[Sequence[Process]], Answers]


@dataclass(frozen=True)
class RunStatus:
    """What ``status --json`` says of one run; None where it is not known.

    Attributes
    ----------
    experiment, run
        The run is ``experiment/run``.
    state
        One of `hpcrun.observe.status.run_state.STATES`.
    attempt
        The newest attempt's number.
    step, total_steps
        Finished optimizer steps, and how many there will be.
    swept
        Full key -> swept value.
    metrics
        The newest values.
    job_id
        ``123``, ``123_4`` or ``local:PID``.
    nodes
        Names of the nodes of the newest attempt, while it holds them or held them last.
    cause
        Why the newest attempt ended badly, as the ledger has it (without the log's tail).
    reason
        The state in words, where it needs any.
    updated
        Seconds since the epoch of the newest of all this on disk.
    directory
        The run's directory; it exists once an attempt began.
    label
        Readable name from the swept values.
    over
        Nothing more will happen to the run by itself.
    previous_cause
        The kind of end, of `hpcrun.policy.causes`, that the attempt before the newest one had.
    tokens_per_second
        While it runs.
    gpu_memory, gpu_memory_total
        Bytes, of the fullest GPU of its first node, while it runs.
    remaining
        Seconds of the steps that are left, at the pace of the last ones, while it runs.
    queued
        Seconds that it has waited, while it waits in the queue.
    """

    experiment: str
    run: int
    state: str
    attempt: int | None
    step: int | None
    total_steps: int | None
    swept: dict[str, Any]
    metrics: dict[str, float] | None
    job_id: str | None
    nodes: list[str] | None
    cause: dict[str, Any] | None
    reason: str | None
    updated: float | None
    directory: str
    label: str
    over: bool
    previous_cause: str | None = None
    tokens_per_second: float | None = None
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    remaining: float | None = None
    queued: float | None = None

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.run}"

    def to_data(self) -> dict[str, Any]:
        """Plain data; numbers that JSON has no notation for become ``"NaN"`` and the like."""
        return {**vars(self), "metrics": finite(self.metrics)}


def finite(values: dict[str, float] | None) -> dict[str, float | str] | None:
    """Metrics as JSON can hold them."""
    if values is None:
        return None
    return {
        name: value if math.isfinite(value) else _NOT_FINITE[str(value)]
        for name, value in values.items()
    }


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def process_of(selected: Selected) -> Process | None:
    """The job that decides about a run; None where none was submitted or the disk decides."""
    return _read(selected).process


@dataclass
class _Read:
    selected: Selected
    attempts: list[Attempt]
    intent: str | None

    @property
    def process(self) -> Process | None:
        """The job that decides about the run; None when the disk decides."""
        if self.intent == ledger.FINISHED:
            return None
        submission = self.selected.submission
        current = state.current_attempt(submission, self.attempts)
        if current is not None and current.outcome in ("completed", "cancelled"):
            return None
        if current is not None and current.ended and self.intent == ledger.CANCELLED:
            return None
        if current is not None and current.job_id:
            job_id = current.job_id
            if submission is None or submission.job_id != job_id:
                return Process(job_id, current.started.get("host"))
        if submission is None or submission.event != SUBMITTED or not submission.job_id:
            return None
        if submission.ended:
            return None
        record = submission.record
        return Process(submission.job_id, record.get("host"), record.get("start_ticks"))


class Observed(NamedTuple):
    """A run's state, and what the ledger says that it follows from."""

    status: RunStatus
    attempts: list[Attempt]


def statuses(selected: Sequence[Selected], **options: Any) -> list[RunStatus]:
    """The state of each run; the options are those of `observe`."""
    return [one.status for one in observe(selected, **options)]


def observe(
    selected: Sequence[Selected],
    *,
    warn: Say = lambda message: None,
    ask: Ask = jobs.ask,
    values: bool = True,
) -> list[Observed]:
    """Where each run stands, in the order given, from one query whatever their number.

    Parameters
    ----------
    warn
        Told when Slurm does not answer; the last state on record is given then.
    ask
        What asks the cluster.
    values
        Read steps and metrics too.
    """
    there = zip(selected, begun(selected), strict=True)
    found = [_read(one) if is_there else _Read(one, [], None) for one, is_there in there]
    processes = [read.process for read in found]
    answers = ask([process for process in processes if process is not None])
    if answers.problem:
        warn(f"warning: {answers.problem}; showing what is on disk\n{_shortened(answers.detail)}")
    patience = metrics.PATIENCE if len(found) <= _MANY else _LITTLE_PATIENCE
    result = []
    for read, process in zip(found, processes, strict=True):
        latest = metrics.Latest()
        if values and read.attempts:
            numbers = [attempt.number for attempt in read.attempts]
            latest = metrics.recorded(read.attempts[-1]) or metrics.latest(
                read.selected.paths, numbers, patience=patience
            )
        settled = _settle(read, process, answers, latest.time)
        result.append(Observed(_status(*settled, latest), settled[0].attempts))
    return result


def _shortened(detail: str | None) -> str:
    lines = [line.strip() for line in (detail or "").splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[:2]) + ("\n  …" if len(lines) > 2 else "")


def _read(selected: Selected) -> _Read:
    attempts = ledger.read(selected.paths)
    current = state.current_attempt(selected.submission, attempts)
    # Where the ledger has the run completed, its intent says nothing new.
    settled = current is not None and current.outcome == "completed"
    return _Read(selected, attempts, None if settled else ledger.intent(selected.paths))


def _settle(
    read: _Read, process: Process | None, answers: Answers, logged: float | None
) -> tuple[_Read, Evidence, Verdict]:
    """Decide; what Slurm calls over is read once more, as its end may have come in between."""
    evidence = _evidence(read, process, answers, logged)
    verdict = state.decide(evidence)
    job = evidence.job
    if process is not None and (job is None or job.ended) and evidence.silence is None:
        again = _read(read.selected)
        if (again.attempts, again.intent) != (read.attempts, read.intent):
            evidence = _evidence(again, process, answers, logged)
            return again, evidence, state.decide(evidence)
    return read, evidence, verdict


def _evidence(
    read: _Read, process: Process | None, answers: Answers, logged: float | None
) -> Evidence:
    submission = read.selected.submission
    moments = [submission.time] if submission else []
    moments += [logged] if logged else []
    if read.attempts:
        last = read.attempts[-1]
        records = (last.started, last.end, {"time": last.workers_started})
        moments += [float(record["time"] or 0) for record in records if record.get("time")]
    return Evidence(
        submission=submission,
        attempts=read.attempts,
        intent=read.intent,
        job=_job(read, process, answers),
        silence=answers.silence(process.job_id) if process else None,
        updated=max(moments, default=None),
    )


def _job(read: _Read, process: Process | None, answers: Answers) -> Job | None:
    submission = read.selected.submission
    if process is not None:
        return answers.jobs.get(process.job_id)
    if submission is not None and submission.ended:
        return Job("GONE", ended=True)
    return None


def _unmet(selected: Selected) -> str | None:
    """A run that this one needs and that has not completed."""
    root = selected.experiment.directory.parent
    for one in selected.plan.depends_on:
        before = layout.experiment(root, one.experiment)
        for run in one.of(selected.run.number):
            if one.when == "success" and ledger.intent(before.run(run)) != ledger.FINISHED:
                return f"{one.experiment}/{run}"
    return None


def _status(read: _Read, evidence: Evidence, verdict: Verdict, latest: metrics.Latest) -> RunStatus:
    selected = read.selected
    last = read.attempts[-1] if read.attempts else None
    if verdict.state == state.CANCELLED and last is None and (unmet := _unmet(selected)):
        why = f"{unmet}, which it depends on, has not completed"
        reason = f"{verdict.reason}: {why}" if verdict.reason else why
        verdict = dataclasses.replace(verdict, reason=reason)
    cause = last.cause if last and verdict.state in _WITH_CAUSE else None
    nodes = last.nodes if last else None
    if evidence.job is not None and evidence.current is None:
        nodes = _names(evidence.job.nodes)
    submission = selected.submission
    job_id = submission.job_id if submission else None
    runs = verdict.state == state.RUNNING
    gpu = _gpu(read) if runs and latest.time is not None else {}
    before = read.attempts[-2].cause if len(read.attempts) > 1 else None
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
        nodes=nodes if isinstance(nodes, list) else None,
        cause={key: cause[key] for key in cause if key != "log_tail"} if cause else None,
        reason=verdict.reason,
        updated=evidence.updated,
        directory=str(selected.paths.directory),
        label=selected.run.label,
        over=verdict.over,
        previous_cause=before.get("kind") if before else None,
        tokens_per_second=latest.tokens_per_second if runs else None,
        gpu_memory=gpu.get("memory"),
        gpu_memory_total=gpu.get("memory_total"),
        remaining=latest.remaining if runs else None,
        queued=_queued(evidence, verdict),
    )


# Of more runs, fewer lines are read.
_MANY, _LITTLE_PATIENCE = 1000, 1


def _gpu(read: _Read) -> dict[str, Any]:
    """The fullest GPU of the first node, as it was sampled last; empty without one."""
    last = read.attempts[-1]
    nodes = last.nodes
    if not isinstance(nodes, list) or not nodes:
        return {}
    path = read.selected.paths.attempt(last.number).telemetry(str(nodes[0]))
    lines = files.read_back(path, 4096)
    sample = next((line for line in lines if isinstance(line.get("time"), (int, float))), {})
    gpus = [gpu for gpu in sample.get("gpus") or () if isinstance(gpu.get("memory"), int)]
    return max(gpus, key=lambda gpu: int(gpu["memory"]), default={})


def _queued(evidence: Evidence, verdict: Verdict) -> float | None:
    if verdict.state not in (state.PENDING, state.REQUEUED) or evidence.submission is None:
        return None
    current = evidence.current
    since = current.end.get("time") if current else evidence.submission.time
    return max(0.0, time.time() - float(since)) if since else None


_WITH_CAUSE = frozenset({state.FAILED, state.REQUEUED, state.RESTARTING, state.UNKNOWN})


def _names(nodes: str) -> list[str] | None:
    from hpcrun.slurm import steps

    try:
        return list(steps.expand(nodes)) or None
    except HpcrunError:
        return [nodes]
