"""A submission's journal: each request to the executor, and its answer.

Lines have ``event`` and ``time``; the events are

``submitting``
    sbatch is about to be called (or the local executor to be started) for ``runs``, of the plan's
    ``array``, from ``host``; ``packed`` where they share one job.
``submitted``
    It answered: ``job_id``, with ``host`` and ``start_ticks`` for the local executor, ``suspects``
    (a sentence for each node that was excluded as suspect) for sbatch.
``waiting``
    The submit, process ``pid`` of ``host``, waits for room in the queue.
``refused``
    ``message`` has the reason.
``updated``
    Slurm took ``changes`` of the jobs of ``runs``: values by name (`hpcrun.state.job_changes`).
``deleted``
    ``runs`` were deleted, whichever submission had them; they are there again once a later
    submission asks for them.
``ended``
    The supervisor of one ``run`` of the local executor, or of a job that several share, ended for
    good, with ``exit_code``; or never began, with ``message``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrun import owner_lock
from hpcrun.errors import BrokenFile
from hpcrun.fields import FLAG, INDEX, INDICES, MAPPING, TEXT, TEXTS, TIME, WHOLE, Kinds, wrong
from hpcrun.host import start_ticks
from hpcrun.shared_dataclass import dataclass, field, replace
from hpcrun.state import files, job_changes
from hpcrun.state.job_changes import JobChange
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths, is_job_id

SUBMITTING = "submitting"
SUBMITTED = "submitted"
WAITING = "waiting"
REFUSED = "refused"
UPDATED = "updated"
DELETED = "deleted"
ENDED = "ended"
# The journal itself cannot be read.
BROKEN = "broken"

_KINDS: Kinds = {
    **dict.fromkeys(("event", "job_id", "host", "message"), TEXT),
    **dict.fromkeys(("array", "part", "run", "pid"), INDEX),
    **dict.fromkeys(("exit_code", "start_ticks", "offset"), WHOLE),
    "time": TIME,
    "runs": INDICES,
    "local": FLAG,
    "packed": FLAG,
    "suspects": TEXTS,
    "changes": MAPPING,
}
_MOST_BYTES = 1 << 26
# Seconds after which whoever began to write a line has died, and between two looks whether it has.
_HELD, _PAUSE = 20.0, 0.02
# More runs than any submission has.
_MOST_RUNS = 500_000


@dataclass(frozen=True)
class Job:
    """The last word of a submission's journal on one run."""

    run: int
    """The run's number."""
    paths: SubmissionPaths
    event: str
    """``submitting`` (no answer was recorded), ``submitted``, ``waiting`` (in a submit that lives),
    ``refused``, ``deleted``, or ``broken`` (the journal cannot be read)."""
    record: dict[str, Any]
    """The journal's line."""
    job_id: str | None = None
    """``123``, ``123_4`` or ``local:PID``; None unless submitted."""
    message: str | None = None
    """The reason, if it was refused or never began."""
    ended: bool = False
    """The local executor, or the job that it shares, recorded the end of this run's supervisor."""
    foreground: bool = False
    """`hpcrun run` started it inside an allocation of the user's, which is not ours to end: a job
    that was never asked for in this journal."""
    changes: dict[str, JobChange] = field(default_factory=dict)
    """What of the job was changed as it waited or ran, by name."""

    @property
    def submission(self) -> int:
        """The submission's number."""
        return self.paths.number

    @property
    def is_local(self) -> bool:
        return bool(self.job_id and self.job_id.startswith("local:"))

    @property
    def is_packed(self) -> bool:
        """Its job has other runs too, each of which ends for itself."""
        return bool(self.record.get("packed"))

    @property
    def time(self) -> float:
        """Seconds since the epoch; 0 if the line has none."""
        return float(self.record.get("time") or 0.0)

    @property
    def script(self) -> Path:
        """The script that sbatch was given."""
        return self.paths.script(self.record.get("array") or 0, self.record.get("part") or 0)

    @property
    def allocation_since(self) -> float | None:
        """When `hpcrun run` was used in an allocation; None of a job that was submitted."""
        return self.time if self.foreground else None

    def answered(self, job_id: str) -> Job:
        """Return the same with the id that Slurm gave to the array or the plain job."""
        record = {**self.record, "job_id": job_id}
        return replace(self, job_id=_job_id(record, self.run), record=record)


def write(
    submission: SubmissionPaths, event: str, array: int, runs: Sequence[int], **details: Any
) -> None:
    """Append one event of one array of the plan."""
    _append(submission, {"event": event, "array": array, "runs": list(runs), **details})


def write_end(
    submission: SubmissionPaths, run: int, exit_code: int, message: str | None = None
) -> None:
    """Append the end of one run's supervisor where its job does not tell, or why it never began."""
    record = {"event": ENDED, "run": run, "exit_code": exit_code}
    _append(submission, {**record, "message": message} if message else record)


def write_deleted(submission: SubmissionPaths, runs: Sequence[int]) -> None:
    """Append that runs were deleted; ``submission`` is the experiment's newest."""
    _append(submission, {"event": DELETED, "runs": sorted(runs)})


def _append(submission: SubmissionPaths, record: dict[str, Any]) -> None:
    """Append a line, one process after another.

    Commands on login nodes and jobs write it, and of lines that two hosts append at once storage
    may lose one.
    """
    path = submission.journal
    lock = path.with_name(f".{path.name}.lock")
    watch = owner_lock.OwnerWatch(path.parent, _HELD)

    def is_left(owner: str) -> bool:
        try:
            return watch.is_left(owner, lock / owner) or watch.silence(lock / owner) > _HELD
        except FileNotFoundError:
            return False

    mine = owner_lock.take(lock, is_left, lambda _: None, pause=_PAUSE)
    try:
        files.append(path, {"event": record.pop("event"), "time": time.time(), **record})
    finally:
        owner_lock.leave(mine)


def read(submission: SubmissionPaths) -> dict[int, Job]:
    """Read the last word on each run that the journal names.

    Raises BrokenFile if it cannot be read, or has a record that no submit wrote: what it asked of
    Slurm is not known then, and must not be asked again.
    """
    found: dict[int, Job] = {}
    asked: set[int] = set()
    for record in _records(submission):
        event, numbers = record.get("event"), record.get("runs") or ()
        if event == ENDED:
            job = found.get(record.get("run", -1))
            if job is not None and job.event in (SUBMITTING, SUBMITTED):
                message = record.get("message")
                found[job.run] = replace(job, ended=True, message=message)
        if len(found) + len(numbers) > _MOST_RUNS:
            raise BrokenFile.of(submission.journal, f"it names more than {_MOST_RUNS:,} runs")
        if event == SUBMITTING:
            asked.update(numbers)
        if event in (REFUSED, WAITING):
            lost = event == WAITING and _is_gone(record)
            message = "its submit is gone; repeat it" if lost else record.get("message")
            for run in numbers:
                kind = REFUSED if lost else event
                found[run] = Job(run, submission, kind, record, None, message)
        elif event == DELETED:
            found.update((run, Job(run, submission, DELETED, record)) for run in numbers)
        elif event in (SUBMITTING, SUBMITTED):
            for run in numbers:
                job_id = _job_id(record, run)
                kind = SUBMITTED if job_id else SUBMITTING
                # A job in place of another of this submission asks for what that one did.
                changes = found[run].changes if run in found else {}
                found[run] = Job(run, submission, kind, record, job_id, changes=changes)
        elif event == UPDATED:
            for run in found.keys() & {*numbers}:
                changes = {**found[run].changes, **job_changes.from_record(record)}
                found[run] = replace(found[run], changes=changes)
    return {
        run: replace(job, foreground=True)
        if job.job_id and not job.is_local and run not in asked
        else job
        for run, job in found.items()
    }


def _records(submission: SubmissionPaths) -> Iterator[dict[str, Any]]:
    path = submission.journal
    try:
        for line, record in files.numbered_lines(path, _MOST_BYTES):
            if isinstance(record, dict):
                if problem := wrong(record, _KINDS):
                    raise BrokenFile.of(path, problem, line)
                yield record
    except OSError as error:
        raise BrokenFile.of(path, error) from None


def broken(submission: SubmissionPaths, run: int, error: BrokenFile) -> Job:
    """Return what is known of a run in place of a journal that cannot be read."""
    return Job(run, submission, BROKEN, {}, message=error.message)


def jobs(submission: SubmissionPaths) -> dict[int, Job]:
    """Read the jobs of a submission by run; a run whose array was refused has none."""
    found = read(submission)
    return {run: job for run, job in found.items() if job.event in (SUBMITTING, SUBMITTED)}


def newest_jobs(experiment: ExperimentPaths) -> dict[int, Job]:
    """Read the job that was last submitted for each run."""
    found: dict[int, Job] = {}
    for submission in experiment.submissions():
        for run, job in read(submission).items():
            if job.event == DELETED:
                found.pop(run, None)
            elif job.event in (SUBMITTING, SUBMITTED):
                found[run] = job
    return found


def _is_gone(record: dict[str, Any]) -> bool:
    """Check whether the process that a line names has ended; False if it is on another host."""
    pid = record.get("pid")
    if record.get("host") != os.uname().nodename or pid is None:
        return False
    return start_ticks(pid) != record.get("start_ticks")


def _job_id(record: dict[str, Any], run: int) -> str | None:
    if not record.get("job_id"):
        return None
    own = (record["job_id"], record["runs"], run, record.get("offset") or 0)
    found = job_of(*own, packed=bool(record.get("packed")))
    # Whoever wrote the line, an option of scancel or a path is no job.
    return found if is_job_id(found) else None


def job_of(job_id: str, runs: Sequence[int], run: int, offset: int, *, packed: bool = False) -> str:
    """Return the job id of one of an array's runs: ``123_4``, else ``123`` or ``local:PID``.

    Runs that are ``packed`` into one job have the same.
    """
    is_plain = packed or job_id.startswith("local:") or len(runs) == 1
    return job_id if is_plain else f"{job_id}_{run - offset}"
