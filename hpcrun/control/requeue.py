"""Start runs again as they were frozen: requeued in Slurm, or submitted anew.

A job that runs is requeued; its supervisor then has the ranks save and leave. A run whose job is
over gets a new submission with the plan and the code of the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.compile.freeze import Compiled, CompiledRun, freeze
from hpcrun.errors import BrokenFile, ClusterUnreachable, UsageError
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import statuses
from hpcrun.policy import next_attempt
from hpcrun.slurm import client, queue
from hpcrun.state import history, job_changes, ledger, permissions, plan_file
from hpcrun.state.job_changes import JobChange
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.submission import feeder, lock, preflight, python_probe, run_actions, sbatch
from hpcrun.submission.feeder import Renew
from hpcrun.submission.run_actions import Decision
from hpcrun.submission.submission_dir import Draft, Prepared
from hpcrun.text import Say, agreeing, listed, runs_text

SUBMIT = "submit"
REQUEUE = "requeue"
LEAVE = "leave"
UNKNOWN = "unknown"

_COMPLETED = "completed already; `hpcrun submit SPEC --new` runs it afresh"
_PRUNED = "was pruned; named by itself, `hpcrun requeue` goes on with it"


@dataclass(frozen=True)
class RequeueStep:
    """The action on one run."""

    experiment: ExperimentPaths
    run: int
    action: str
    """``submit`` (again, as its job is over), ``requeue`` (its job runs), ``leave``, or ``unknown``
    while Slurm does not answer."""
    reason: str | None = None
    """Why it is left alone, or why the action is unknown; None otherwise."""
    job_id: str | None = None
    """Its job: once it was submitted again, the new one."""

    @property
    def name(self) -> str:
        return f"{self.experiment.name}/{self.run}"

    def to_data(self, dry_run: bool) -> dict[str, Any]:
        """Return what ``hpcrun requeue --json`` prints."""
        done = {SUBMIT: "submitted", REQUEUE: "requeued", LEAVE: "left", UNKNOWN: UNKNOWN}
        is_done = dry_run and self.action in (SUBMIT, REQUEUE)
        return {
            "experiment": self.experiment.name,
            "run": self.run,
            "action": f"would {self.action}" if is_done else done[self.action],
            "reason": self.reason,
            "job_id": self.job_id,
        }


def look(selected: Sequence[Selected], warn: Say | None = None) -> list[RequeueStep]:
    """Return what `restart` would do now, once the jobs of cancelled runs have ended.

    Where Slurm does not answer and ``warn`` is given, return what is known, and call it. Raise
    UsageError if all of them have completed, BrokenFile if the intent of none can be read, and as
    `hpcrun.submission.run_actions.decide`.
    """
    readable, left, promoted = _readable(selected)
    if left and not readable:
        raise BrokenFile(str(left[0].reason))
    steps: list[RequeueStep] = []
    try:
        for experiment, runs in _by_experiment(readable).items():
            goes_on = {run_actions.CANCELLING, *promoted}
            decisions = [
                dataclasses.replace(one, action=run_actions.RESUMED)
                if one.action in goes_on
                else one
                for one in run_actions.decide(experiment, list(runs))
            ]
            steps += _steps(experiment, decisions, runs)
    except ClusterUnreachable:
        if warn is None:
            raise
        steps = _steps_without_slurm(readable, warn)
    steps += left
    completed = [step.name for step in steps if step.reason == _COMPLETED]
    if completed and len(completed) == len(steps):
        have = "has" if len(completed) == 1 else "have"
        raise UsageError(
            f"{listed(completed, 6)} {have} completed, and a completed run is never started again",
            hint="`hpcrun submit SPEC --new` runs the same afresh, under a new number",
        )
    return steps


def restart(selected: Sequence[Selected], *, argv: Sequence[str], say: Say) -> list[RequeueStep]:
    """Start those runs again that are neither completed nor waiting.

    Runs that were pruned go on only if all of the selected ones were, and are not pruned again.
    Raise UsageError if the frozen code or plan is gone or the job's Python is unusable, and as
    `hpcrun.submission.feeder.send`.
    """
    done: list[RequeueStep] = []
    readable, left, promoted = _readable(selected)
    for experiment, runs in _by_experiment(readable).items():
        cluster = next(one.plan.cluster for one in readable if one.experiment == experiment)
        preflight.check_root(experiment.directory.parent, cluster, say)
        with lock.hold(experiment, say) as renew:
            permissions.check_mine(experiment, runs, "requeue")
            decisions = run_actions.settle(experiment, list(runs), say)
            if again := [one for one in decisions if one.action in promoted]:
                run_actions.wait_for_ends(again, say)
                say(f"{runs_text([one.run for one in again])}: not pruned again")
                decisions = [
                    dataclasses.replace(one, action=run_actions.RESUMED, has_checkpoints=True)
                    if one.action in promoted
                    else one
                    for one in decisions
                ]
            steps = _steps(experiment, decisions, runs)
            anew = {step.run for step in steps if step.action == SUBMIT}
            wanted = [one for one in decisions if one.run in anew]
            ids = _submit_again(experiment, wanted, argv, say, renew)
            for step in steps:
                if step.action == REQUEUE:
                    assert step.job_id is not None
                    _requeue(step.job_id)
                    say(f"requeued job {step.job_id}: run {step.run}")
        done += [dataclasses.replace(step, job_id=ids.get(step.run, step.job_id)) for step in steps]
    return [*done, *left]


def _readable(
    selected: Sequence[Selected],
) -> tuple[list[Selected], list[RequeueStep], Collection[str]]:
    """Return the runs whose intent can be read, and the steps of the others, which are left.

    And the decision that makes a run go on though it is over: that it was pruned, if all were.
    """
    readable: list[Selected] = []
    left: list[RequeueStep] = []
    intents: set[str | None] = set()
    for one in selected:
        try:
            intents.add(ledger.intent(one.paths))
        except BrokenFile as error:
            step = RequeueStep(one.experiment, one.run.number, LEAVE, error.message, one.job_id)
            left.append(step)
        else:
            readable.append(one)
    return readable, left, (run_actions.PRUNED,) if intents == {ledger.PRUNED} else ()


def _by_experiment(selected: Sequence[Selected]) -> dict[ExperimentPaths, dict[int, bool]]:
    """Group runs by experiment: number -> whether `hpcrun run` started it in an allocation."""
    found: dict[ExperimentPaths, dict[int, bool]] = {}
    for one in selected:
        foreground = one.submission is not None and one.submission.foreground
        found.setdefault(one.experiment, {})[one.run.number] = foreground
    return found


def _steps(
    experiment: ExperimentPaths, decisions: Sequence[Decision], foreground: Mapping[int, bool]
) -> list[RequeueStep]:
    attached = [one.job for one in decisions if one.action == run_actions.ATTACHED]
    states = queue.query(
        {job.job_id for job in attached if job and job.job_id and not job.is_local}
    )
    waiting = {job_id for job_id, state in states.items() if state.is_waiting}
    return [
        RequeueStep(
            experiment,
            one.run,
            *_action(one, waiting, foreground[one.run]),
            one.job.job_id if one.job else None,
        )
        for one in decisions
    ]


def _steps_without_slurm(selected: Sequence[Selected], warn: Say) -> list[RequeueStep]:
    """Return the steps that are certain without Slurm; of the others what is known of the run."""
    steps = []
    for one, status in zip(selected, statuses(selected, warn=warn, values=False), strict=True):
        known = ": ".join(filter(None, (status.state, status.reason)))
        action, reason = UNKNOWN, f"not known: {known}"
        if status.state == run_state.COMPLETED:
            action, reason = LEAVE, _COMPLETED
        steps.append(RequeueStep(one.experiment, one.run.number, action, reason, one.job_id))
    return steps


def _action(
    decision: Decision, waiting: Collection[str], foreground: bool
) -> tuple[str, str | None]:
    """Return the action on a run, and why it is left alone."""
    job = decision.job
    if decision.action == run_actions.COMPLETED:
        return LEAVE, _COMPLETED
    if decision.action == run_actions.PRUNED:
        return LEAVE, _PRUNED
    if decision.action == run_actions.CANCELLING:
        return LEAVE, "its cancelled job has not ended yet; repeat the command in a minute"
    if decision.is_submitted:
        return SUBMIT, None
    if job is None or job.job_id is None:
        return LEAVE, "queued already, under an id that is not on record; `squeue --me` shows it"
    if job.is_local:
        return LEAVE, "waits or runs on this machine already; `hpcrun cancel` ends it first"
    if foreground:
        return LEAVE, "runs in an allocation of yours, which hpcrun does not requeue"
    if job.is_packed:
        return LEAVE, "shares its job with other runs; `hpcrun cancel` ends it, then repeat this"
    if job.job_id in waiting:
        return LEAVE, "waits in the queue already"
    return REQUEUE, None


def _requeue(job_id: str) -> None:
    """Have Slurm put a running job back into the queue."""
    problem = client.requeue(job_id, client.TIMEOUT)
    if problem is not None:
        hint = "`hpcrun status` tells where the run stands"
        raise client.refusal(f"scontrol requeue {job_id}: {problem}", hint=hint)


def _submit_again(
    experiment: ExperimentPaths,
    decisions: Sequence[Decision],
    argv: Sequence[str],
    say: Say,
    renew: Renew,
) -> dict[int, str]:
    """Return run -> its new job. All files are written before Slurm is asked for the first time."""
    prepared: list[Prepared] = []
    found: dict[int, str] = {}
    try:
        for source, these in _sources(experiment, decisions).items():
            prepared.append(_prepare(experiment, source, these, argv, say))
        while prepared:
            # A submission of which nothing was accepted is discarded by the feeder.
            one = prepared.pop(0)
            for array in feeder.send(one, say, renew):
                found.update(array.jobs())
    except BaseException:
        for one in prepared:
            assert one.draft is not None
            one.draft.discard()
        raise
    return found


def _sources(
    experiment: ExperimentPaths, decisions: Sequence[Decision]
) -> dict[SubmissionPaths, list[Decision]]:
    """Map submissions to the runs that they were the last to submit, or else to plan."""
    newest: dict[int, SubmissionPaths] = {}
    if any(decision.job is None for decision in decisions):
        for number, plan in history.plans(experiment).items():
            newest.update((run.number, experiment.submission(number)) for run in plan.runs)
    found: dict[SubmissionPaths, list[Decision]] = {}
    for decision in decisions:
        job = decision.job
        found.setdefault(job.paths if job else newest[decision.run], []).append(decision)
    return found


def _as_grown(
    run: RunPlan,
    experiment: ExperimentPaths,
    source: SubmissionPaths,
    changes: Mapping[str, JobChange],
    say: Say,
) -> dict[str, Any]:
    """Return a run's spec with what its job came to ask for.

    That is the memory and time that have grown (and is said), and what `hpcrun update` changed.
    """
    attempts = ledger.read(experiment.run(run.number))
    # Memory of a processor is an option of the user's.
    more = {
        grow["key"]: grow["now"]
        for grow in next_attempt.growths(attempts, source.number, changes)
        if grow["field"] != "MinMemoryCPU"
    }
    for key, now in more.items():
        say(f"run {run.number} asks for {key} {now}, as its job did at the end")
    kept = {name: one for name, one in changes.items() if name not in more}
    spec = job_changes.apply(run.spec, kept)
    return {**spec, "resources": {**spec["resources"], **more}} if more else spec


def _tell_changes(changes: Mapping[int, Mapping[str, JobChange]], say: Say) -> None:
    """Say which runs keep what `hpcrun update` has changed of their jobs."""
    groups: dict[str, list[int]] = {}
    for run, these in changes.items():
        of_new = {name: one for name, one in these.items() if name != job_changes.PRIORITY}
        if of_new:
            groups.setdefault(job_changes.in_words(of_new), []).append(run)
    for told, runs in groups.items():
        keeps = agreeing(len(runs), "keeps", "keep")
        say(f"{runs_text(runs)} {keeps} what `hpcrun update` gave: {told}")
    if any(job_changes.PRIORITY in these for these in changes.values()):
        say("a new job gets its priority from Slurm")


def _prepare(
    experiment: ExperimentPaths,
    source: SubmissionPaths,
    decisions: list[Decision],
    argv: Sequence[str],
    say: Say,
) -> Prepared:
    """Prepare a submission of these runs alone, with the plan and the code of an earlier one."""
    try:
        earlier = plan_file.read(source.plan)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source.plan} cannot be read: {error}", hint="`hpcrun submit` makes a plan anew"
        ) from None
    preflight.check_executor(earlier.cluster)
    permissions.use_profile(earlier.cluster)
    wanted = {decision.run for decision in decisions}
    changes = {one.run: one.job.changes if one.job else {} for one in decisions}
    _tell_changes(changes, say)
    runs = [run for run in earlier.runs if run.number in wanted]
    unchecked = python_probe.unchecked(source) or permissions.foreign([source.plan])
    preflight.check_images(runs, earlier.cluster, (), say)
    found = preflight.check_python(runs, earlier.cluster, unchecked=unchecked, say=say)
    with Draft(experiment) as draft:
        compiled = Compiled(
            name=experiment.name,
            root=experiment.directory.parent,
            spec_file=earlier.spec_file,
            code_root=earlier.code_root,
            directory=earlier.directory,
            cluster=earlier.cluster,
            max_parallel=job_changes.max_parallel(changes.values(), earlier.max_parallel),
            repeats=earlier.repeats,
            runs=tuple(
                CompiledRun(
                    *(run.identity, run.label, run.swept, run.entry),
                    _as_grown(run, experiment, source, changes[run.number], say),
                )
                for run in runs
            ),
        )
        plan = freeze(
            sbatch.with_array_size(compiled, say) if runs[1:] else compiled,
            submission=draft.paths.number,
            numbers={run.identity: run.number for run in runs},
            depends_on=earlier.depends_on,
        )
        draft.fill(plan, found, argv=argv, earlier=source)
    return Prepared(experiment, plan, decisions, draft)
