"""Cancel runs: the intent on disk first, then the executor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from hpcrun.errors import (
    EXIT_INTERRUPTED,
    BrokenFile,
    ClusterRefused,
    ClusterUnreachable,
    Interrupted,
)
from hpcrun.observe.read.selection import Selected
from hpcrun.slurm import client, queue, steps
from hpcrun.state import journal, ledger, permissions
from hpcrun.state.journal import Job
from hpcrun.state.layout import SubmissionPaths
from hpcrun.submission.local import executor
from hpcrun.text import Say

# What is true of runs whose jobs were not ended.
_LEFT = "those that wait end as they start; those that run go on until their job is ended"


def cancel(selected: Sequence[Selected], say: Say) -> None:
    """Record every intent, then end the jobs and processes.

    The intents stand even if it raises: ClusterRefused if Slurm refuses, ClusterUnreachable if it
    does not answer or a run is on another machine, Interrupted after Ctrl-C.
    """
    queued: list[Selected] = []
    local: list[tuple[Selected, Job]] = []
    for one in selected:
        if not _is_finished(one):
            permissions.use_profile(one.plan.cluster)
            ledger.set_intent(one.paths, ledger.CANCELLED)
        job = one.submission
        if job is not None and job.job_id:
            if job.is_local or job.foreground:
                local.append((one, job))
            else:
                queued.append(one)
    try:
        if queued:
            _end_jobs(queued, say)
    except ClusterRefused as error:
        raise ClusterRefused(
            f"the runs are marked as cancelled and do not start again; Slurm ended no job: "
            f"{error.message}",
            hint="see what still runs: hpcrun status",
        ) from None
    except ClusterUnreachable as error:
        raise ClusterUnreachable(
            "the runs are marked as cancelled, and Slurm could not be told: "
            f"{error.message}\n{_LEFT}",
            hint="repeat the same command when the cluster is back: it ends their jobs",
        ) from None
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted: the runs are marked as cancelled, and Slurm may not have been told\n"
            f"{_LEFT}",
            hint="repeat the same command: it ends their jobs",
        ) from None
    finally:
        if local:
            _end_processes(local, say)


def _end_jobs(selected: Sequence[Selected], say: Say) -> None:
    """End the runs' jobs that live; tell each number that Slurm has given to another job."""
    jobs = [(one, *found) for one in selected for found in _jobs_of(one)]
    states = queue.query([job_id for _, job_id, _ in jobs], accounting=False)
    if states.controller_is_down:
        raise ClusterUnreachable(states.problems[0])
    living: list[str] = []
    shared: dict[str, list[tuple[Selected, Job]]] = {}
    for one, job_id, job in jobs:
        state = states.get(job_id)
        if state is None:
            continue
        if problem := queue.JobMark(job.paths.directory).problem(state):
            say(f"{one.name}: {problem}, which is left alone")
        elif not state.is_over:
            if job.is_packed:
                shared.setdefault(state.job_id, []).append((one, job))
            else:
                living.append(state.job_id)
    for job_id, some in shared.items():
        if _is_all_over(*some[0]):
            living.append(job_id)
        else:
            _end_steps(job_id, [job for _, job in some])
    client.cancel(living)


def _jobs_of(one: Selected) -> Iterator[tuple[str, Job]]:
    """Yield a run's job with its number, and an older one that runs an attempt.

    A person may have requeued that in Slurm; an allocation is the user's.
    """
    if one.submission is not None:
        yield str(one.job_id), one.submission
    with contextlib.suppress(BrokenFile):
        last = next(reversed(ledger.read(one.paths)), None)
        if last and last.ended is None and last.submission and last.job_id != one.job_id:
            job = journal.read(one.experiment.submission(last.submission)).get(one.run.number)
            if job and last.job_id and not (job.is_local or job.foreground):
                yield last.job_id, job


def _is_all_over(one: Selected, job: Job) -> bool:
    """Check whether no run is left of a job that a run shares with others."""
    jobs = journal.read(job.paths)
    left = (run for run, its in jobs.items() if its.job_id == job.job_id and not its.ended)
    return all(ledger.intent(one.experiment.run(run)) is not None for run in left)


def _end_steps(job_id: str, runs: Sequence[Job]) -> None:
    """Have the supervisors of runs that share a job end them; those that wait are over at once."""
    ids = client.step_ids(job_id)
    for job in runs:
        step = ids.get(steps.packed_name(job.run))
        if step is not None:
            client.signal_step(step, "USR1")
        elif not job.ended:
            journal.write_end(job.paths, job.run, EXIT_INTERRUPTED)


def _end_processes(runs: Sequence[tuple[Selected, Job]], say: Say) -> None:
    """End what `hpcrun run` and the local executor started on this machine.

    An allocation in which `hpcrun run` was used is the user's, and is left as it is.
    """
    here: dict[SubmissionPaths, list[int]] = {}
    elsewhere: list[str] = []
    for one, job in runs:
        host = _host(one, job)
        if host in (None, os.uname().nodename):
            here.setdefault(job.paths, []).append(job.run)
        else:
            elsewhere.append(f"{one.name} on {host}")
    for paths, numbers in here.items():
        say(f"ending {len(numbers)} local run(s) of {paths.experiment.name}")
        executor.cancel(paths, numbers)
    if elsewhere:
        raise ClusterUnreachable(
            f"marked as cancelled, and still to be ended on their own machine: "
            f"{', '.join(elsewhere)}",
            hint="repeat the same command there",
        )


def _is_finished(one: Selected) -> bool:
    # What is no intent is replaced by one.
    with contextlib.suppress(BrokenFile):
        return ledger.intent(one.paths) in ledger.GOOD_ENDS
    return False


def _host(one: Selected, job: Job) -> str | None:
    """Return the host of the run's supervisor; None if there is no supervisor."""
    if job.record.get("host"):
        return str(job.record["host"])
    with contextlib.suppress(BrokenFile):
        for last in ledger.read(one.paths)[-1:]:
            return None if last.ended else last.started.get("host")
    return None
