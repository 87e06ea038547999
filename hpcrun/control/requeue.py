"""Runs that are started again as they were frozen: requeued in Slurm, or submitted anew.

A job that runs is requeued; its supervisor then has the ranks save and leave. One that is over gets
a new submission with the plan and the code of the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpcrun.compile import Compiled, CompiledRun, freeze
from hpcrun.errors import ClusterRefused, ClusterUnreachable, UsageError
from hpcrun.slurm import client
from hpcrun.state import permissions, plan_file
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.submit import feeder, lock, preflight, run_actions
from hpcrun.submit.feeder import Renew
from hpcrun.submit.run_actions import Decision
from hpcrun.submit.submission_dir import Draft, Prepared, job_of
from hpcrun.text import Say

SUBMIT = "submit"
REQUEUE = "requeue"
LEAVE = "leave"


@dataclass(frozen=True)
class Step:
    """What is done about one run.

    Attributes
    ----------
    run
        The run's number.
    action
        ``submit`` (again, for its job is over), ``requeue`` (its job runs) or ``leave``.
    reason
        Why it is left alone, in words; None otherwise.
    job_id
        Its job: once it was submitted again, the new one.
    """

    run: int
    action: str
    reason: str | None = None
    job_id: str | None = None


def look(
    experiment: ExperimentPaths, runs: Sequence[int], foreground: Collection[int] = ()
) -> list[Step]:
    """What `restart` would do now, once the jobs of cancelled runs have ended; changes nothing.

    Parameters
    ----------
    foreground
        Runs that `hpcrun run` started in an allocation of the user's.

    Raises
    ------
    ClusterUnreachable, UsageError
        As `hpcrun.submit.run_actions.decide`.
    """
    decisions = run_actions.decide(experiment, runs)
    return _steps(
        [
            dataclasses.replace(one, action=run_actions.RESUMED)
            if one.action == run_actions.CANCELLING
            else one
            for one in decisions
        ],
        foreground,
    )


def restart(
    experiment: ExperimentPaths,
    runs: Sequence[int],
    foreground: Collection[int] = (),
    *,
    argv: Sequence[str],
    say: Say,
) -> list[Step]:
    """Start runs again, those that are neither completed nor waiting.

    Parameters
    ----------
    foreground
        As `look`.
    argv
        The command, for the record.
    say
        Takes messages for the person.

    Raises
    ------
    UsageError
        The frozen code or plan is not there, or the job's Python is of no use.
    ClusterRefused, ClusterUnreachable
        Slurm says no, or is not there; no submission is left behind that it took nothing of.
    """
    preflight.check_root(experiment.directory.parent)
    with lock.held(experiment, say) as renew:
        decisions = run_actions.settle(experiment, runs, say)
        steps = _steps(decisions, foreground)
        again = {step.run for step in steps if step.action == SUBMIT}
        ids = _submit_again(experiment, [d for d in decisions if d.run in again], argv, say, renew)
        for step in steps:
            if step.action == REQUEUE:
                assert step.job_id is not None
                _requeue(step.job_id)
                say(f"requeued job {step.job_id}: run {step.run}")
    return [dataclasses.replace(step, job_id=ids.get(step.run, step.job_id)) for step in steps]


def _steps(decisions: Sequence[Decision], foreground: Collection[int]) -> list[Step]:
    waiting = _waiting(
        decision.job.job_id
        for decision in decisions
        if decision.action == run_actions.ATTACHED and decision.job and not decision.job.is_local
    )
    return [_step(decision, waiting, decision.run in foreground) for decision in decisions]


def _step(decision: Decision, waiting: Collection[str], foreground: bool) -> Step:
    job = decision.job
    job_id = job.job_id if job else None

    def left(reason: str) -> Step:
        return Step(decision.run, LEAVE, reason, job_id)

    if decision.action == run_actions.COMPLETED:
        return left("completed already; `hpcrun submit --new` runs it afresh")
    if decision.action == run_actions.CANCELLING:
        return left("its cancelled job has not ended yet; repeat the command in a minute")
    if decision.is_submitted:
        return Step(decision.run, SUBMIT, None, job_id)
    if job is None or job_id is None:
        return left("queued already, under an id that is not on record; `squeue --me` shows it")
    if job.is_local:
        return left("waits or runs on this machine already; `hpcrun cancel` ends it first")
    if foreground:
        return left("runs in an allocation of yours, which hpcrun does not requeue")
    if job_id in waiting:
        return left("waits in the queue already")
    return Step(decision.run, REQUEUE, None, job_id)


def _waiting(job_ids: Iterable[str | None]) -> set[str]:
    states = client.query({job_id for job_id in job_ids if job_id})
    return {job_id for job_id, state in states.items() if state.waiting}


def _requeue(job_id: str) -> None:
    """Have Slurm put a running job back into the queue.

    Raises
    ------
    ClusterRefused, ClusterUnreachable
        Slurm says no, or does not answer.
    """
    try:
        client.command(["scontrol", "requeue", job_id])
    except client.CommandFailed as error:
        message = f"scontrol requeue {job_id}: {error}"
        if client.is_unreachable(message):
            raise ClusterUnreachable(message, hint="repeat the same command") from None
        raise ClusterRefused(message, hint="`hpcrun status` tells where the run stands") from None


def _submit_again(
    experiment: ExperimentPaths,
    decisions: Sequence[Decision],
    argv: Sequence[str],
    say: Say,
    renew: Renew,
) -> dict[int, str]:
    """Run -> its new job. All files are written before Slurm is asked for the first time."""
    prepared: list[Prepared] = []
    found: dict[int, str] = {}
    try:
        for source, these in _sources(experiment, decisions).items():
            prepared.append(_prepare(experiment, source, these, argv))
        while prepared:
            # What was sent discards itself where nothing of it was accepted.
            one = prepared.pop(0)
            for array in feeder.send(one, say, renew):
                found.update((run, job_of(array, run)) for run in array.runs)
    except BaseException:
        for one in prepared:
            assert one.draft is not None
            one.draft.discard()
        raise
    return found


def _sources(
    experiment: ExperimentPaths, decisions: Sequence[Decision]
) -> dict[SubmissionPaths, list[Decision]]:
    """Submission -> the runs that it was the last to give to the executor, or else to plan."""
    newest: dict[int, SubmissionPaths] = {}
    if any(decision.job is None for decision in decisions):
        for submission in experiment.submissions():
            if submission.plan.exists():
                newest.update(
                    (run.number, submission) for run in plan_file.read(submission.plan).runs
                )
    found: dict[SubmissionPaths, list[Decision]] = {}
    for decision in decisions:
        job = decision.job
        source = experiment.submission(job.submission) if job else newest[decision.run]
        found.setdefault(source, []).append(decision)
    return found


def _prepare(
    experiment: ExperimentPaths,
    source: SubmissionPaths,
    decisions: list[Decision],
    argv: Sequence[str],
) -> Prepared:
    """A submission of these runs alone, with the plan and the code of an earlier one."""
    try:
        earlier = plan_file.read(source.plan)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source.plan} cannot be read: {error}", hint="`hpcrun submit` makes a plan anew"
        ) from None
    preflight.check_executor(earlier.cluster)
    permissions.use_umask(earlier.cluster)
    wanted = {decision.run for decision in decisions}
    runs = [run for run in earlier.runs if run.number in wanted]
    found = preflight.check_python(runs, earlier.cluster)
    with Draft(experiment) as draft:
        compiled = Compiled(
            name=earlier.name,
            root=experiment.directory.parent,
            spec_file=earlier.spec_file,
            code_root=earlier.code_root,
            directory=earlier.directory,
            cluster=earlier.cluster,
            max_parallel=earlier.max_parallel,
            repeats=earlier.repeats,
            runs=tuple(
                CompiledRun(run.identity, run.label, run.swept, run.entry, run.spec) for run in runs
            ),
        )
        plan = freeze(
            compiled,
            submission=draft.paths.number,
            numbers={run.identity: run.number for run in runs},
            depends_on=earlier.depends_on,
        )
        draft.fill(plan, found, argv=argv, earlier=source)
    return Prepared(experiment, plan, decisions, draft)
