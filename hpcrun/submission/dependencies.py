"""Dependencies between runs: sbatch's ``--dependency``, and the local wait.

Standard library only, because the local executor uses it from the frozen ``hpcrun.zip``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hpcrun.errors import UsageError
from hpcrun.state import journal, layout, ledger
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Array, Dependence, Plan
from hpcrun.submission import run_actions
from hpcrun.submission.local import processes

# Whether a run on this machine may start.
READY = "ready"
WAITING = "waiting"

Living = dict[int, Job]


class JobDependencies:
    """The jobs that the runs of a plan have to wait for now.

    Raises UsageError if they wait for a run that has neither completed nor is queued or running,
    ClusterUnreachable if Slurm does not answer.
    """

    def __init__(self, plan: Plan, experiment: ExperimentPaths) -> None:
        if any(one.each for one in plan.depends_on) and any(one.packed for one in plan.arrays):
            raise _apart(plan.name)
        self._living: list[tuple[Dependence, Living]] = [
            (one, _living(one, layout.experiment(experiment.directory.parent, one.experiment)))
            for one in plan.depends_on
        ]

    def groups(self, array: Array, runs: Sequence[int]) -> list[tuple[int, ...]]:
        """Divide runs of an array into groups with one ``--dependency`` each."""
        found: dict[Hashable, list[int]] = {}
        for run in runs:
            found.setdefault(self._key(array, run), []).append(run)
        return [tuple(group) for group in found.values()]

    def option(self, runs: Sequence[int]) -> str | None:
        """Return sbatch's ``--dependency`` for one group; None if it waits for nothing."""
        words = []
        for one, living in self._living:
            after = "afterany" if one.when == "end" else "afterok"
            if not one.each:
                ids = _ids(living, one)
                words += [f"{after}:{':'.join(ids)}"] if ids else []
            elif (job := next((living[run] for run in runs if run in living), None)) is not None:
                several = f"aftercorr:{job.record['job_id']}"
                words.append(f"{after}:{job.job_id}" if len(runs) == 1 else several)
        return ",".join(words) or None

    def _key(self, array: Array, run: int) -> Hashable:
        parts: list[Hashable] = []
        for one, living in self._living:
            job = living.get(run) if one.each else None
            if job is None:
                parts.append(None)
            elif len(job.record["runs"]) > 1 and job.record.get("offset", 0) == array.offset:
                # Slurm pairs tasks by their indices.
                parts.append(job.record["job_id"])
            else:
                parts.append(job.job_id)
        return tuple(parts)


def _living(one: Dependence, experiment: ExperimentPaths) -> Living:
    found: Living = {}
    for decision in run_actions.decide(experiment, one.runs):
        over = one.when == "end" and decision.action == run_actions.RESUMED
        if decision.action in run_actions.GOOD_ENDS or over:
            continue
        job = decision.job
        if decision.action != run_actions.ATTACHED or job is None or not job.job_id:
            raise UsageError(
                f"depends_on: {one.experiment}/{decision.run} has not completed, and is neither "
                "queued nor running",
                hint="submit it first; `hpcrun status` tells how it stands",
            )
        if one.each and job.is_packed:
            raise _apart(one.experiment)
        found[decision.run] = job
    return found


def _apart(name: str) -> UsageError:
    return UsageError(
        f"depends_on: with `each` a run waits for one other run, and those of {name} share a job "
        "(resources.pack)",
        hint="leave `each` out, or give the runs jobs of their own",
    )


def _ids(living: Living, one: Dependence) -> list[str]:
    """Return the ids of the jobs; an array has one id if all of its runs are waited for."""
    found: dict[str, None] = {}
    for job in living.values():
        runs = set(job.record["runs"])
        others = {run for run, other in living.items() if other.record is not job.record}
        whole = runs <= set(one.runs) and not runs & others
        found[str(job.record["job_id"] if whole else job.job_id)] = None
    return list(found)


def standing(plan: Plan, experiment: ExperimentPaths, run: int) -> str:
    """Return ``READY``, ``WAITING``, or why a run on this machine can never start."""
    for one in plan.depends_on:
        before = layout.experiment(experiment.directory.parent, one.experiment)
        jobs = journal.newest_jobs(before)
        for number in one.of(run):
            if ledger.intent(before.run(number)) in ledger.GOOD_ENDS:
                continue
            job = jobs.get(number)
            if job is not None and not job.ended and processes.alive(job.record):
                return WAITING
            if one.when == "success":
                return f"{one.experiment}/{number}, which it depends on, did not complete"
    return READY
