"""What was asked of the executor for a submission, and what it answered."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths

SUBMITTING = "submitting"
SUBMITTED = "submitted"
WAITING = "waiting"
REFUSED = "refused"
ENDED = "ended"


@dataclass(frozen=True)
class Job:
    """What carries one run of one submission.

    Attributes
    ----------
    run
        The run's number.
    submission
        The submission's number.
    job_id
        ``123``, ``123_4`` or ``local:PID``; None when it was asked for and no answer was recorded.
    record
        The journal's line, with ``host`` and ``start_ticks`` for the local executor.
    ended
        Whether the local executor recorded the end of this run's supervisor.
    message
        Why it never began, where that is known.
    """

    run: int
    submission: int
    job_id: str | None
    record: dict[str, Any]
    ended: bool = False
    message: str | None = None

    @property
    def is_local(self) -> bool:
        return bool(self.job_id and self.job_id.startswith("local:"))

    def script(self, experiment: ExperimentPaths) -> Path:
        """What sbatch was given."""
        array, part = self.record.get("array") or 0, self.record.get("part") or 0
        return experiment.submission(self.submission).script(array, part)

    def answered(self, job_id: str) -> Job:
        """The same with the id that Slurm gave to the array or the plain job."""
        record = {**self.record, "job_id": job_id}
        return dataclasses.replace(self, job_id=_job_id(record, self.run), record=record)


def write(
    submission: SubmissionPaths, event: str, array: int, runs: Sequence[int], **details: Any
) -> None:
    """Append one event of one array of the plan."""
    files.append(
        submission.journal,
        {"event": event, "time": time.time(), "array": array, "runs": list(runs), **details},
    )


def write_end(
    submission: SubmissionPaths, run: int, exit_code: int, message: str | None = None
) -> None:
    """Append the end of one run's supervisor, as the local executor saw it; or why none began."""
    record = {"event": ENDED, "time": time.time(), "run": run, "exit_code": exit_code}
    files.append(submission.journal, {**record, "message": message} if message else record)


def jobs(submission: SubmissionPaths) -> dict[int, Job]:
    """Run -> its job in this submission; a run whose array was refused has none."""
    found: dict[int, Job] = {}
    for record in files.read_lines(submission.journal):
        runs = record.get("runs")
        if record.get("event") == ENDED and record.get("run") in found:
            found[record["run"]] = dataclasses.replace(
                found[record["run"]], ended=True, message=record.get("message")
            )
        if not isinstance(runs, list):
            continue
        if record.get("event") in (REFUSED, WAITING):
            for run in runs:
                found.pop(run, None)
        elif record.get("event") in (SUBMITTING, SUBMITTED):
            for run in runs:
                found[run] = Job(run, submission.number, _job_id(record, run), record)
    return found


def newest_jobs(experiment: ExperimentPaths) -> dict[int, Job]:
    """Run -> the job that was last submitted for it."""
    found: dict[int, Job] = {}
    for submission in experiment.submissions():
        found.update(jobs(submission))
    return found


def _job_id(record: dict[str, Any], run: int) -> str | None:
    job_id = record.get("job_id")
    if not isinstance(job_id, str):
        return None
    if job_id.startswith("local:") or len(record["runs"]) == 1:
        return job_id
    return f"{job_id}_{run - record.get('offset', 0)}"
