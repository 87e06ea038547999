"""Decide about each run: leave it, keep its job, or submit it (again)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun import activity, shared_look
from hpcrun.errors import ClusterUnreachable, UsageError
from hpcrun.slurm import client, queue
from hpcrun.state import journal, ledger, plan_file
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan
from hpcrun.submission import sbatch
from hpcrun.submission.local import processes
from hpcrun.text import Say, plural

COMPLETED = "completed"
PRUNED = "pruned"
EXTENDED = "extended"
ATTACHED = "attached"
CANCELLING = "cancelling"
NEW = "new"
RESUMED = "resumed"
SKIPPED = "skipped"
# Cancelled by somebody before its submission came to it.
DROPPED = "cancelled"

# Over, and nothing went wrong: left alone.
GOOD_ENDS = (COMPLETED, PRUNED)
# Submitted although it ran before.
GOING_ON = (RESUMED, EXTENDED)
SUBMITTED = (NEW, *GOING_ON)

CANCEL_PATIENCE = 90.0
# Seconds beyond its own limit after which no sbatch lives.
_KILL_AFTER = 10.0


@dataclass(frozen=True)
class Decision:
    """The action on one run."""

    run: int
    action: str
    """``completed`` and ``pruned`` (left alone), ``attached`` (its job lives), ``cancelling`` (its
    job has not ended yet), ``new`` (never submitted before), ``resumed`` (submitted before; goes on
    from its newest checkpoint, or starts again), ``extended`` (had completed, and goes on with
    another value of an extendable key), ``skipped`` (one of these three that was not asked
    for)."""
    job: Job | None = None
    """The job that it was last given to; None for a new run."""
    has_checkpoints: bool = False
    """Its session has saved something; looked for where it is ``resumed``."""

    @property
    def is_submitted(self) -> bool:
        return self.action in SUBMITTED


def changed_runs(jobs: Mapping[int, Job], earlier: Mapping[int, Plan], plan: Plan) -> set[int]:
    """Return the plan's runs that were last submitted with other values, of extendable keys.

    ``jobs`` are the runs' last ones, ``earlier`` the plans by the number of the submission. Raise
    FileNotFoundError if the plan of one of the jobs is gone.
    """
    was = {
        run.number: run.identity
        for paths in {job.paths for job in jobs.values()}
        for run in (earlier.get(paths.number) or plan_file.read(paths.plan)).runs
        if run.number in jobs and jobs[run.number].paths == paths
    }
    return {run.number for run in plan.runs if was.get(run.number, run.identity) != run.identity}


def decide(experiment: ExperimentPaths, runs: Sequence[int], *, ask: bool = True) -> list[Decision]:
    """Decide about runs from their intents, the journals and the state of their jobs.

    Raise ClusterUnreachable if the state of a job is unknown, so that nothing may be submitted
    again; UsageError if a run's job is on another machine. ``ask=False`` takes all jobs for over.
    """
    jobs = journal.newest_jobs(experiment)
    # One listing instead of two look-ups a run, which matters on shared storage.
    begun = {*experiment.run_numbers()}
    intents = {run: ledger.intent(experiment.run(run)) if run in begun else None for run in runs}
    asked = [jobs[run] for run in runs if run in jobs and intents[run] not in ledger.GOOD_ENDS]
    unseen = {run for run in runs if intents[run] is None}
    living = _living(_with_lost_answers(asked), unseen) if ask and asked else set()
    decisions: list[Decision] = []
    for run in runs:
        job = jobs.get(run)
        if intents[run] in ledger.GOOD_ENDS:
            action = COMPLETED if intents[run] == ledger.FINISHED else PRUNED
        elif run in living:
            action = CANCELLING if intents[run] == ledger.CANCELLED else ATTACHED
        else:
            action = RESUMED if job or run in begun else NEW
        saved = action == RESUMED and experiment.run(run).checkpoints.is_dir()
        decisions.append(Decision(run, action, job, saved))
    return decisions


def settle(experiment: ExperimentPaths, runs: Sequence[int], say: Say) -> list[Decision]:
    """`decide`, once nothing is under way that would change the decision.

    That is the jobs of cancelled runs, which take up to Slurm's KillWait to end, and an sbatch
    whose submit was killed: it may still reach Slurm.
    """
    doing = "asking which runs wait or run already"
    with activity.doing(lambda: doing):
        while script := _on_its_way(experiment, runs):
            if not doing.startswith("waiting"):
                say(f"waiting for an sbatch that was begun before: {script}")
                doing = "waiting for an sbatch that was begun before"
            time.sleep(0.5)
        deadline = time.monotonic() + CANCEL_PATIENCE
        said = False
        while True:
            decisions = decide(experiment, runs)
            leaving = sum(decision.action == CANCELLING for decision in decisions)
            if not leaving or time.monotonic() > deadline:
                return decisions
            doing = f"waiting for {plural(leaving, 'cancelled run')} to end"
            if not said:
                say(doing)
                said = True
            time.sleep(1)


def wait_for_ends(decisions: Sequence[Decision], say: Say) -> None:
    """Wait until the jobs of completed runs have ended."""
    deadline = time.monotonic() + CANCEL_PATIENCE
    jobs = [decision.job for decision in decisions if decision.job is not None]
    said = False
    with activity.doing("waiting for the jobs of completed runs to end"):
        while jobs and (living := _living(jobs)) and time.monotonic() < deadline:
            if not said:
                say(f"waiting for {plural(len(living), 'job')} of completed runs to end")
                said = True
            time.sleep(0.5)


def _on_its_way(experiment: ExperimentPaths, runs: Collection[int]) -> Path | None:
    """Return the script of an sbatch without an answer that may still be running."""
    jobs = journal.newest_jobs(experiment)
    for job in (jobs[run] for run in runs if run in jobs):
        record = job.record
        if job.job_id is not None or "host" not in record or record.get("local"):
            continue
        elsewhere = record.get("host") != os.uname().nodename
        age = _age_by_storage(job) if elsewhere else time.time() - job.time
        is_young = age < sbatch.TIMEOUT + _KILL_AFTER
        if is_young and (elsewhere or sbatch.is_running(job.script)):
            return job.script
    return None


def _age_by_storage(job: Job) -> float:
    """Return the seconds since a journal was written by another host, whose clock may differ."""
    with contextlib.suppress(OSError):
        now = shared_look.storage_time(job.paths.directory)
        return now - shared_look.modified(job.paths.journal)
    return time.time() - job.time


def preview(experiment: ExperimentPaths, runs: Sequence[int], say: Say) -> list[Decision]:
    """`decide` without waiting for anything; what cannot be found out is said."""
    try:
        return decide(experiment, runs)
    except (ClusterUnreachable, UsageError) as error:
        say(f"not known is which runs are queued or running, and stay as they are: {error.message}")
        return decide(experiment, runs, ask=False)


def _with_lost_answers(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, those whose id was never recorded as found in the queue by their script."""
    if all(job.job_id or job.record.get("local") for job in jobs) or not client.available():
        return list(jobs)
    queued = client.jobs_by_script()
    return [
        job.answered(ids[-1])
        if job.job_id is None and (ids := queued.get(str(job.script)))
        else job
        for job in jobs
    ]


def _living(jobs: Collection[Job], unseen: Collection[int] = ()) -> set[int]:
    """Return the runs whose job waits or runs.

    So does one of ``unseen``, runs without an intent here, whose job has just completed: it is not
    submitted again on what this host cannot see yet.
    """
    living = {job.run for job in jobs if job.is_local and _lives_here(job)}
    # A submit was killed before it recorded what it had started.
    unnoted = [job for job in jobs if job.job_id is None and job.record.get("local")]
    for number in {job.submission for job in unnoted}:
        own = [job for job in unnoted if job.submission == number]
        if _begun_here(own[0]):
            living |= {job.run for job in own}
    queued = [job for job in jobs if job.job_id and not job.is_local and not job.ended]
    if not queued:
        return living
    if not client.available():
        raise ClusterUnreachable(
            f"these runs were given to Slurm (job {queued[-1].job_id}), and there is no squeue on "
            "PATH to ask whether they still run",
            hint="run this on a login node of the cluster, or take another `name=` or `--root`",
        )
    states = queue.query({job.job_id for job in queued if job.job_id})
    for job in queued:
        state = states.get(job.job_id or "")
        if state is None and states.controller_is_down:
            raise ClusterUnreachable(
                f"whether job {job.job_id} still runs cannot be found out: {states.problems[0]}",
                hint="repeat the same command",
            )
        if state is None:
            continue
        state = queue.JobMark(job.paths.directory, job.allocation_since).checked(state)
        if state.is_alive or (job.run in unseen and state.has_just_completed):
            living.add(job.run)
    return living


def _lives_here(job: Job) -> bool:
    lives = processes.alive(job.record)
    if lives is None and not job.ended:
        raise _elsewhere(job)
    return bool(lives) and not job.ended


def _begun_here(job: Job) -> bool:
    if job.record.get("host") != os.uname().nodename:
        raise _elsewhere(job)
    return any(True for _ in processes.of_submission(job.paths.directory))


def _elsewhere(job: Job) -> UsageError:
    host = job.record.get("host")
    return UsageError(
        f"run {job.run} was started on {host} ({job.job_id or 'killed as it was'}); whether it "
        "still runs cannot be found out from here",
        hint=f"repeat the command on {host}",
    )
