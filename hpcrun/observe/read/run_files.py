"""The submissions, plans and batch logs of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.observe.read.selection import Selected
from hpcrun.state import history, ledger
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import Plan


def submissions(one: Selected) -> list[SubmissionPaths]:
    """Return the submissions with its newest plan and of its jobs and attempts, oldest first."""
    found = {one.planned.paths, *(paths for paths, _ in _jobs(one))}
    return sorted(found, key=lambda paths: paths.number)


def batch_logs(one: Selected) -> list[Path]:
    """Return the existing logs of the run's batch steps, of Slurm or the local executor."""
    found = {
        path
        for paths, job_id in _jobs(one)
        for path in (paths.batch_log(job_id), paths.local_log(one.run.number))
    }
    return sorted(path for path in found if path.is_file())


def plan(paths: SubmissionPaths) -> Plan | None:
    """Return the plan of a submission; None if it cannot be read."""
    try:
        return history.read_plan(paths)
    except (OSError, UsageError):
        return None


def _jobs(one: Selected) -> set[tuple[SubmissionPaths, str]]:
    found = set()
    if one.submission is not None:
        found.add((one.submission.paths, str(one.submission.job_id)))
    # A ledger that cannot be read names none.
    with contextlib.suppress(BrokenFile):
        for attempt in ledger.read(one.paths):
            if attempt.submission is not None:
                paths = one.experiment.submission(attempt.submission)
                found.add((paths, str(attempt.job_id)))
    return found
