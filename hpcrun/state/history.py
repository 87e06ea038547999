"""The submissions of an experiment: their plans and journals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from hpcrun import shared_look
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import (
    annotation_log,
    chosen_point,
    journal,
    permissions,
    plan_file,
    submission_facts,
)
from hpcrun.state.annotation_log import Annotation
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import Say


@dataclass(frozen=True)
class Planned:
    """A submission and the plan that it froze."""

    paths: SubmissionPaths
    plan: Plan

    @property
    def spec_file(self) -> str:
        """Return the spec's path: the user's file, or what was kept of a command line's."""
        return str(self.paths.spec) if self.plan.is_typed else self.plan.spec_file


@dataclass
class History:
    """Everything that was submitted for an experiment."""

    runs: dict[int, tuple[Planned, RunPlan]] = field(default_factory=dict)
    """Run number -> the newest plan that has it, and the run in it."""
    submissions: dict[int, Job] = field(default_factory=dict)
    """Run number -> the journals' last word; a refusal does not hide an earlier job."""
    newest: Planned | None = None
    """The newest submission with a readable plan."""
    annotations: dict[int, Annotation] = field(default_factory=dict)
    """Run number -> its tags and notes; runs without any are not in it."""
    deleted: set[int] = field(default_factory=set)
    """Runs that were deleted, and not submitted again since; they are not in ``runs``."""


def read(experiment: ExperimentPaths, warn: Say = lambda message: None) -> History:
    """Read the plans and journals of an experiment.

    ``warn`` receives a message for each plan or journal that cannot be read, as long as others can;
    runs whose newest journal is such a one have a job that says so. Raises UsageError if there are
    plans, and none can be read.
    """
    found = History()
    broken: list[str] = []
    journals: list[str] = []
    since: dict[int, float] = {}
    for paths in experiment.submissions():
        silent = None
        try:
            submissions = journal.read(paths)
        except BrokenFile as error:
            submissions, silent = {}, error
            journals.append(error.message)
        for run, submission in submissions.items():
            if submission.event == journal.DELETED:
                found.deleted.add(run)
                since[run] = submission.time
                found.submissions.pop(run, None)
                continue
            found.deleted.discard(run)
            if submission.event != journal.REFUSED or run not in found.submissions:
                found.submissions[run] = submission
        try:
            planned = Planned(paths, read_plan(paths))
        except (FileNotFoundError, NotADirectoryError):
            broken += [_gone(paths).message] if _is_sent(submissions) else []
            continue
        except UsageError as error:
            broken.append(error.message)
            continue
        found.newest = planned
        for run_plan in planned.plan.runs:
            found.runs[run_plan.number] = (planned, run_plan)
            if silent is not None:
                job = journal.broken(paths, run_plan.number, silent)
                found.submissions[run_plan.number] = job
    if broken and not found.runs:
        raise BrokenFile(broken[-1])
    for message in (*broken, *journals):
        warn(f"passed over: {message}")
    for run in found.deleted & found.runs.keys():
        del found.runs[run]
    runs = (plan for _, plan in found.runs.values())
    found.annotations = annotations_of(experiment, runs, since, warn)
    return found


def annotations_of(
    experiment: ExperimentPaths,
    runs: Iterable[RunPlan],
    since: Mapping[int, float] | None = None,
    warn: Say = lambda message: None,
) -> dict[int, Annotation]:
    """Return the tags and notes of runs that have some, by number.

    Those from before the time in ``since`` were of another run of that number, which was deleted.
    """
    said = {run.number: annotation_log.of_spec(run.spec) for run in runs}
    return annotation_log.apply(annotation_log.read(experiment, warn), said, since or {}, warn)


def read_plan(paths: SubmissionPaths) -> Plan:
    """Read the plan of a submission, once as long as it is the same file.

    Raises as `plan_file.read` does.
    """
    try:
        found = shared_look.status(paths.plan)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise BrokenFile.of(paths.plan, error) from None
    plan = _read_plan(paths, (found.st_ino, found.st_size, found.st_mtime_ns))
    return chosen_point.apply_points(plan, paths.experiment)


@lru_cache(maxsize=16)
def _read_plan(paths: SubmissionPaths, file: tuple[int, int, int]) -> Plan:
    return plan_file.read_frozen(paths.plan)


def readable_plan(paths: SubmissionPaths) -> Plan | None:
    """Return the plan of a submission; None if it cannot be read."""
    try:
        return read_plan(paths)
    except (OSError, UsageError):
        return None


def plans(experiment: ExperimentPaths) -> dict[int, Plan]:
    """Read the plans of all submissions: number -> plan, oldest first.

    Raises BrokenFile if one is gone: runs would get the numbers of others.
    """
    found = {}
    for submission in experiment.submissions():
        if shared_look.is_there(submission.plan):
            found[submission.number] = plan_file.read(submission.plan)
        elif _is_sent(journal.read(submission)):
            raise _gone(submission)
    return found


def _is_sent(jobs: Mapping[int, Job]) -> bool:
    """Check whether runs of a submission were given to an executor, as far as its journal tells."""
    return any(job.event in (journal.SUBMITTING, journal.SUBMITTED) for job in jobs.values())


def _gone(submission: SubmissionPaths) -> BrokenFile:
    return BrokenFile(
        f"{submission.plan} is gone, and with it what the runs of submission {submission.number} "
        "are; put it back (from a snapshot of the storage), or take another name for new runs"
    )


def numbers(plans: Mapping[int, Plan]) -> dict[str, int]:
    """Return the numbers that runs were given: identity -> number, the last one of several."""
    return {run.identity: run.number for plan in plans.values() for run in plan.runs}


class LastSubmission(NamedTuple):
    """When an experiment was last submitted, and whose it is."""

    time: float
    """Seconds since the epoch."""
    owner: int | None
    """The id of a user."""
    is_told: bool
    """Its ``submission.json`` says so."""


def last_submission(experiment: ExperimentPaths) -> LastSubmission:
    """Return an experiment's last submission; its time is 0 without one.

    The owner is that of the submission's directory, or else of the experiment's. One without a
    readable ``submission.json`` counts from its directory's time.
    """
    try:
        newest = experiment.submissions()[-1]
    except (BrokenFile, IndexError):
        return LastSubmission(0.0, permissions.owner(experiment.directory), False)
    when = float(submission_facts.describe(newest).get("time") or 0.0)
    is_told = bool(when)
    if not is_told:
        with contextlib.suppress(OSError):
            when = newest.directory.stat().st_mtime
    return LastSubmission(when, permissions.owner(newest.directory), is_told)
