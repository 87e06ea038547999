"""Cancel runs: the intent on disk first, then the executor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    local: list[Selected] = []
    for one in selected:
        if not _is_finished(one):
            permissions.use_profile(one.plan.cluster)
            ledger.set_intent(one.paths, ledger.CANCELLED)
        if one.submission is not None and one.job_id:
            if one.submission.is_local or one.submission.foreground:
                local.append(one)
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
    shared: dict[str, list[Selected]] = {}
    for one, job_id, job in jobs:
        state = states.get(job_id)
        if state is None:
            continue
        if problem := queue.JobMark(job.paths.directory).problem(state):
            say(f"{one.name}: {problem}, which is left alone")
        elif not state.is_over:
            if job.is_packed:
                shared.setdefault(state.job_id, []).append(replace(one, submission=job))
            else:
                living.append(state.job_id)
    for job_id, some in shared.items():
        if _is_all_over(some):
            living.append(job_id)
        else:
            _end_steps(job_id, some)
    client.cancel(living)


def _jobs_of(one: Selected) -> Iterator[tuple[str, journal.Job]]:
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


def _is_all_over(selected: Sequence[Selected]) -> bool:
    """Check whether no run is left of a job that these runs share with others."""
    job, experiment = selected[0].submission, selected[0].experiment
    assert job is not None
    jobs = journal.read(job.paths)
    left = (run for run, one in jobs.items() if one.job_id == job.job_id and not one.ended)
    return all(ledger.intent(experiment.run(run)) is not None for run in left)


def _end_steps(job_id: str, selected: Sequence[Selected]) -> None:
    """Have the supervisors of runs that share a job end them; those that wait are over at once."""
    ids = client.step_ids(job_id)
    for one in selected:
        number, job = one.run.number, one.submission
        assert job is not None
        step = ids.get(steps.packed_name(number))
        if step is not None:
            client.signal_step(step, "USR1")
        elif not job.ended:
            journal.write_end(job.paths, number, EXIT_INTERRUPTED)


def _end_processes(selected: Sequence[Selected], say: Say) -> None:
    """End what `hpcrun run` and the local executor started on this machine.

    An allocation in which `hpcrun run` was used is the user's, and is left as it is.
    """
    here: dict[SubmissionPaths, list[int]] = {}
    elsewhere: list[str] = []
    for one in selected:
        assert one.submission is not None
        host = _host(one)
        if host in (None, os.uname().nodename):
            here.setdefault(one.submission.paths, []).append(one.run.number)
        else:
            elsewhere.append(f"{one.name} on {host}")
    for paths, runs in here.items():
        say(f"ending {len(runs)} local run(s) of {paths.experiment.name}")
        executor.cancel(paths, runs)
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


def _host(one: Selected) -> str | None:
    """Return the host of the run's supervisor; None if there is no supervisor."""
    assert one.submission is not None
    if one.submission.record.get("host"):
        return str(one.submission.record["host"])
    try:
        attempts = ledger.read(one.paths)
    except BrokenFile:
        return None
    return attempts[-1].started.get("host") if attempts and not attempts[-1].ended else None
