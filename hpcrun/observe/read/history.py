"""What was submitted: the plans and journals of an experiment, oldest to newest."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.host import start_ticks
from hpcrun.state import files, journal, plan_file
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import Say

SUBMITTING = journal.SUBMITTING
SUBMITTED = journal.SUBMITTED
REFUSED = journal.REFUSED
WAITING = journal.WAITING


@dataclass(frozen=True)
class Submission:
    """The journal's last word on one run.

    Attributes
    ----------
    paths
        The submission whose journal speaks.
    event
        ``submitting`` (no answer was recorded), ``submitted``, ``waiting`` (in a submit that lives,
        for room in the queue) or ``refused``.
    record
        The journal's line.
    job_id
        ``123``, ``123_4`` or ``local:PID``; None unless submitted.
    message
        Slurm's words, when refused.
    ended
        Whether the local executor saw the run's supervisor end.
    foreground
        Whether `hpcrun run` started it inside an allocation of the user's, which is not ours to
        end: a job that was never asked for in this journal.
    """

    paths: SubmissionPaths
    event: str
    record: dict[str, Any]
    job_id: str | None = None
    message: str | None = None
    ended: bool = False
    foreground: bool = False

    @property
    def is_local(self) -> bool:
        return bool(self.job_id and self.job_id.startswith("local:"))

    @property
    def time(self) -> float:
        """Seconds since the epoch."""
        return _number(self.record.get("time"))


@dataclass(frozen=True)
class Planned:
    """A submission and the plan that it froze."""

    paths: SubmissionPaths
    plan: Plan


@dataclass
class History:
    """All that was submitted for an experiment.

    Attributes
    ----------
    runs
        Run number -> the newest plan that has it, and the run in it.
    submissions
        Run number -> the journals' last word; a refusal does not hide an earlier job.
    newest
        The newest submission with a readable plan.
    """

    runs: dict[int, tuple[Planned, RunPlan]] = field(default_factory=dict)
    submissions: dict[int, Submission] = field(default_factory=dict)
    newest: Planned | None = None


def read(experiment: ExperimentPaths, warn: Say = lambda message: None) -> History:
    """Read the plans and journals of an experiment.

    Parameters
    ----------
    warn
        Told of plans that cannot be read, as long as others can.

    Raises
    ------
    UsageError
        There are plans, and none can be read.
    """
    found = History()
    broken: list[str] = []
    for paths in experiment.submissions():
        for run, submission in submissions(paths).items():
            if submission.event != REFUSED or run not in found.submissions:
                found.submissions[run] = submission
        try:
            planned = Planned(paths, read_plan(paths))
        except FileNotFoundError:
            continue
        except UsageError as error:
            broken.append(error.message)
            continue
        found.newest = planned
        for run_plan in planned.plan.runs:
            found.runs[run_plan.number] = (planned, run_plan)
    if broken and not found.runs:
        raise UsageError(broken[-1])
    for message in broken:
        warn(f"passed over: {message}")
    return found


def read_plan(paths: SubmissionPaths) -> Plan:
    """The plan of a submission, which is read once as long as it is the same file.

    Raises
    ------
    UsageError
        The file is not a plan.
    FileNotFoundError
        There is none (yet).
    """
    found = paths.plan.stat()
    return _read_plan(paths, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=16)
def _read_plan(paths: SubmissionPaths, file: tuple[int, int, int]) -> Plan:
    try:
        return plan_file.read(paths.plan)
    except UsageError as error:
        raise UsageError(f"{paths.plan}: {error.message}", hint=error.hint) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{paths.plan} is not a plan: {type(error).__name__}: {error}") from None


def submissions(paths: SubmissionPaths) -> dict[int, Submission]:
    """Run number -> the last word of one submission's journal."""
    found: dict[int, Submission] = {}
    asked: set[int] = set()
    for record in files.read_lines(paths.journal):
        runs = record.get("runs")
        if not isinstance(runs, list):
            continue
        numbers = [run for run in runs if isinstance(run, int)]
        if record.get("event") == SUBMITTING:
            asked.update(numbers)
        elif record.get("event") in (REFUSED, WAITING):
            told = Submission(paths, record["event"], record, message=record.get("message"))
            if told.event == WAITING and _is_gone(record):
                told = Submission(paths, REFUSED, record, message="its submit is gone; repeat it")
            found.update((run, told) for run in numbers)
    for run, job in journal.jobs(paths).items():
        found[run] = Submission(
            paths=paths,
            event=SUBMITTED if job.job_id else SUBMITTING,
            record=job.record,
            job_id=job.job_id,
            ended=job.ended,
            message=job.message,
            foreground=bool(job.job_id) and not job.is_local and run not in asked,
        )
    return found


def _is_gone(record: dict[str, Any]) -> bool:
    """Whether the process that a line names has ended; False of one on another host."""
    pid = record.get("pid")
    if record.get("host") != os.uname().nodename or not isinstance(pid, int):
        return False
    return start_ticks(pid) != record.get("start_ticks")


def runs_of_job(experiment: ExperimentPaths, job: str, task: str | None) -> list[int]:
    """The runs that were ever submitted as job ``job`` (one task of it, or all)."""
    wanted = f"{job}_{task}" if task else job
    found = set()
    for paths in experiment.submissions():
        for number, submission in submissions(paths).items():
            known = submission.job_id or ""
            if known == wanted or (task is None and known.startswith(f"{job}_")):
                found.add(number)
    return sorted(found)


def describe(paths: SubmissionPaths) -> dict[str, Any]:
    """``submission.json`` as far as it can be read; empty where it cannot."""
    try:
        data = files.read_json(paths.submission)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def last_submission(experiment: ExperimentPaths) -> tuple[float, str | None]:
    """When an experiment was last submitted (seconds since the epoch), and by whom.

    A submission that left no readable ``submission.json`` counts from its directory's time.
    """
    submissions = experiment.submissions()
    if not submissions:
        return 0.0, None
    newest = submissions[-1]
    data = describe(newest)
    try:
        when = _number(data.get("time")) or newest.directory.stat().st_mtime
    except OSError:
        when = 0.0
    who = data.get("user")
    return when, who if isinstance(who, str) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
