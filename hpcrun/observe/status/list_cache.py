"""Rows of `hpcrun list` of experiments whose runs are settled, kept by this user on this host.

A row is used again as long as what it was made of is the same. Whatever submits, deletes, renames
or takes back a cancellation holds the experiment's submit lock, which is a name in the experiment's
directory, as the first tag makes one: that directory is opened, so that its server tells whether it
changed, and so are tags, and ledger and intent of each run that may go on by itself. Journals and
the directory of runs change beside it where somebody removes files by hand; this host's word is
enough for them. Plans, and the files of runs that have completed, are final, and not looked at:
whoever changes them by hand sees the row of before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.observe.read.root_cache import RootCache, are_old
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import Observed
from hpcrun.policy import recovery
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import ledger, permissions
from hpcrun.state.layout import ExperimentPaths

# What a row holds, and by which rules; another number forgets all rows.
FORMAT = 3


@dataclass(frozen=True)
class SettledRow:
    """A row, and what it holds for."""

    row: dict[str, Any]
    owner: int | None
    """The id of the user whose last submission it is."""
    looked: list[Any]
    """The numbers of its submissions, the files of its tags and notes (None without a directory of
    them), and the runs that may go on: their ledgers and intents are part of the marks."""
    jobs: list[str]
    """Their jobs in Slurm: one that waits there again makes its run go on."""
    marks: list[Any]


class ListCache(RootCache[SettledRow]):
    """The rows of one root, read from this user's cache file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "list", SettledRow, FORMAT)

    def find(self, experiment: ExperimentPaths) -> SettledRow | None:
        """Return the row of an experiment that is as it was; None without one."""
        kept = self._kept.get(experiment.name)
        if kept is None or kept.marks != _marks(experiment, *kept.looked):
            return None
        # What a name service says may be another: it may have been silent.
        kept.row["user"] = None if kept.owner is None else permissions.user_name(kept.owner)
        self._used[experiment.name] = kept
        return kept

    def drop(self, name: str) -> None:
        """Forget the row of an experiment."""
        self._used.pop(name, None)

    def keep(
        self,
        experiment: ExperimentPaths,
        row: dict[str, Any],
        observed: Iterable[tuple[Selected, Observed]],
        since: float,
    ) -> None:
        """Keep a row that was made of these runs, read after ``since`` (seconds since the epoch).

        Not if a run of them may still change, or may have changed meanwhile.
        """
        each = [*observed]
        if not each or not all(_is_settled(*one) for one in each):
            return
        unfinished = [(one, found.status) for one, found in each if not _is_final(one, found)]
        failed = {one.job_id for _, one in unfinished if one.state == run_state.FAILED}
        jobs = sorted(job for job in failed if job and not job.startswith("local:"))
        with contextlib.suppress(OSError, BrokenFile):
            submissions, notes = experiment.submissions(), experiment.annotations
            looked: list[Any] = [
                [one.number for one in submissions],
                sorted(shared_look.names(notes)) if shared_look.is_directory(notes) else None,
                [one.run.number for one, _ in unfinished],
            ]
            marks = _marks(experiment, *looked)
            # A run that began as it was cancelled has not said so at once.
            ended = [
                one.paths for one, found in each if found.status.state not in run_state.GOOD_ENDS
            ]
            aged = [shared_look.mark(path) for run in ended for path in (run.ledger, run.intent)]
            # What holds the lock may be about to change the rest.
            is_locked = shared_look.is_there(experiment.submit_lock)
            if marks is not None and are_old([*marks, *aged], since) and not is_locked:
                owner = permissions.owner(submissions[-1].directory)
                self._used[experiment.name] = SettledRow(row, owner, looked, jobs, marks)


def _is_settled(one: Selected, observed: Observed) -> bool:
    """Check whether a run's files alone decide what it is and was, unless its job waits again."""
    status, attempts = observed
    if not attempts:
        # Slurm tells no more of it than the user did.
        return status.state == run_state.CANCELLED and _is_final(one, observed)
    last = attempts[-1]
    # Without its times, how long it held its nodes depends on when that is asked.
    timed = last.end.get("time") and all(attempt.began is not None for attempt in attempts)
    if not (timed and status.over):
        return False
    if status.state in run_state.GOOD_ENDS:
        return True
    if last.job_id != status.job_id:
        return False
    if status.state == run_state.CANCELLED:
        return last.outcome == "cancelled"
    is_last = last.action not in recovery.GOES_ON and last.outcome == "failed"
    decided = last.action == recovery.STOP or last.kind != "signal"
    return status.state == run_state.FAILED and is_last and decided


def _is_final(one: Selected, observed: Observed) -> bool:
    """Check whether a settled run can go on only by a command that holds the submit lock."""
    state = observed.status.state
    if state == run_state.CANCELLED:
        with contextlib.suppress(BrokenFile):
            return ledger.intent(one.paths) == ledger.CANCELLED
    return state in run_state.GOOD_ENDS


def _marks(
    experiment: ExperimentPaths,
    submissions: Sequence[int],
    notes: Sequence[str] | None,
    unfinished: Sequence[int],
) -> list[Any] | None:
    """Return what tells whether anything that a row was made of has changed; None if unknown."""
    journals = [experiment.submission(number).journal for number in submissions]
    asked = [] if notes is None else [experiment.annotations]
    asked += [experiment.annotations / name for name in notes or ()]
    runs = [experiment.run(number) for number in unfinished]
    asked += [path for run in runs for path in (run.ledger, run.intent)]
    try:
        # Which lets this host look anew for the names below it.
        found = [shared_look.mark(experiment.directory)]
        found += map(shared_look.known_mark, (experiment.runs_directory, *journals))
        return [*found, *map(shared_look.mark, asked)]
    except OSError:
        return None
