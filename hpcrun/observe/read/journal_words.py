"""The last words of experiments' journals, read again only where a submission or a journal changed.

Of an experiment that is as it was, two directories' and files' attributes are asked of the server:
those of ``submissions`` and of each journal. Whether a job still lives is Slurm's to say.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hpcrun import activity, shared_look
from hpcrun.errors import BrokenFile
from hpcrun.observe.read.root_cache import RootCache, are_old
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import history, journal
from hpcrun.state.layout import ExperimentPaths

# What is kept, and by which rules; another number forgets all.
FORMAT = 2


@dataclass(frozen=True)
class JournalWords:
    """Holds what journals say of an experiment, as plain data of JSON."""

    submitted: float
    owner: int | None
    """When it was last submitted, in seconds since the epoch, and whose that is."""
    count: int
    """The runs of which they say something; those that were deleted are none."""
    jobs: dict[str, str] = field(default_factory=dict)
    """A run's number -> its job in Slurm, which alone decides whether it is at work."""
    without: list[int] = field(default_factory=list)
    """Other runs that may be at work: about to be submitted, or the local executor's."""
    others: dict[str, list[int]] = field(default_factory=dict)
    """Further jobs -> their runs: the local executor's, and those of earlier submissions."""
    marks: list[Any] = field(default_factory=list)

    def runs_of(self, job_ids: Collection[str]) -> list[int]:
        """Return the runs that were ever submitted as one of these jobs, or as a task of one."""

        def is_one(job_id: str) -> bool:
            return job_id in job_ids or job_id.partition("_")[0] in job_ids

        found = {int(run) for run, job_id in self.jobs.items() if is_one(job_id)}
        found.update(run for job_id, runs in self.others.items() if is_one(job_id) for run in runs)
        return sorted(found)


class JournalCache(RootCache[JournalWords]):
    """The words of one root's experiments, each looked for once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "journals", JournalWords, FORMAT)
        self._since = time.time()

    def words(self, experiments: Sequence[ExperimentPaths]) -> list[JournalWords | BrokenFile]:
        """Return the words of each, or why a journal of it cannot be read; keep what may be."""
        looks = shared_look.each(self._look, experiments)
        pairs = zip(activity.count(experiments, "reading journals"), looks, strict=True)
        found = [words for _, words in pairs]
        self.write()
        return found

    def _look(self, experiment: ExperimentPaths) -> JournalWords | BrokenFile:
        name = experiment.name
        kept = self._kept.get(name)
        if kept is not None:
            numbers = [number for number, *_ in kept.marks[1:]]
            if kept.marks == _marks(experiment, numbers):
                self._used[name] = kept
                return kept
        try:
            words, may_be_kept = _read_journals(experiment)
        except BrokenFile as error:
            return error
        dated = [*words.marks[:1], *(mark for _, *both in words.marks[1:] for mark in both)]
        if may_be_kept and are_old(dated, self._since):
            self._used[name] = words
        return words


def _read_journals(experiment: ExperimentPaths) -> tuple[JournalWords, bool]:
    """Read the journals; return also whether their words follow from their bytes alone."""
    submissions = experiment.submissions()
    last: dict[int, journal.Job] = {}
    others: dict[str, list[int]] = {}
    for paths in submissions:
        for run, job in journal.read(paths).items():
            if job.job_id is not None:
                others.setdefault(job.job_id, []).append(run)
            if job.event == journal.DELETED:
                last.pop(run, None)
            elif job.event != journal.REFUSED or run not in last:
                # A refusal does not hide an earlier job.
                last[run] = job
    over = {run for run, job in last.items() if job.ended or job.event == journal.REFUSED}
    alive = {run: job for run, job in last.items() if run not in over}
    jobs = {str(run): job.job_id for run, job in alive.items() if job.job_id and not job.is_local}
    for text, job_id in jobs.items():
        others[job_id].remove(int(text))
    newest = history.last_submission(experiment)
    marks = _marks(experiment, [one.number for one in submissions])
    words = JournalWords(
        newest.time,
        newest.owner,
        len(last),
        jobs,
        [run for run, job in alive.items() if not job.job_id or job.is_local],
        {job_id: runs for job_id, runs in others.items() if runs},
        marks or [],
    )
    # A submit that waits may be gone the next moment.
    waits = any(job.record.get("event") == journal.WAITING for job in last.values())
    return words, marks is not None and newest.is_told and not waits


def _marks(experiment: ExperimentPaths, numbers: Sequence[int]) -> list[Any] | None:
    """Return the marks of all that the words follow from; None if one cannot be read.

    First comes the directory of the submissions, then of each its number, its own, and its journal.
    """
    try:
        found: list[Any] = [shared_look.mark(experiment.submissions_directory)]
        for number in numbers:
            paths = experiment.submission(number)
            directory = paths.directory.lstat()
            own = [directory.st_ino, directory.st_uid, directory.st_mtime_ns]
            found.append([number, own, shared_look.mark(paths.journal)])
    except OSError:
        return None
    return found
