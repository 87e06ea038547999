"""Rows of `hpcrun list` of experiments whose runs are settled, kept by this user on this host.

A row is used again as long as what it was made of is the same, by its server's word: submissions,
journals, plans, tags, the directory of runs, and the ledger and intent of each run that has not
completed. That of one that has is final, and is not looked at: whoever removes it by hand sees the
row of before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.observe.read.root_cache import RootCache, are_old
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import Observed
from hpcrun.policy import recovery
from hpcrun.state import ledger, permissions
from hpcrun.state.layout import ExperimentPaths

# What a row holds, and by which rules; another number forgets all rows.
FORMAT = 2


@dataclass(frozen=True)
class SettledRow:
    """A row, and what it holds for."""

    row: dict[str, Any]
    unfinished: list[int]
    """The runs that have not completed, whose ledger and intent are part of the mark."""
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
        if kept is None or kept.marks != _marks(experiment, kept.unfinished):
            return None
        # What a name service says may be another: it may have been silent.
        (_, _, uid), *_ = kept.marks
        kept.row["user"] = None if uid is None else permissions.user_name(uid)
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
        states = {one.run.number: found.status for one, found in each}
        unfinished = [run for run, one in states.items() if one.state != run_state.COMPLETED]
        failed = {one.job_id for one in states.values() if one.state == run_state.FAILED}
        jobs = sorted(job for job in failed if job and not job.startswith("local:"))
        marks = _marks(experiment, unfinished)
        if marks is not None and are_old(marks[1:], since):
            self._used[experiment.name] = SettledRow(row, unfinished, jobs, marks)


def _is_settled(one: Selected, observed: Observed) -> bool:
    """Check whether a run's files alone decide what it is and was, unless its job waits again."""
    status, attempts = observed
    if not attempts:
        # Slurm tells no more of it than the user did.
        with contextlib.suppress(BrokenFile):
            is_cancelled = status.state == run_state.CANCELLED
            return is_cancelled and ledger.intent(one.paths) == ledger.CANCELLED
        return False
    last = attempts[-1]
    # Without its times, how long it held its nodes depends on when that is asked.
    timed = last.end.get("time") and all(attempt.began is not None for attempt in attempts)
    if not (timed and status.over):
        return False
    if status.state == run_state.COMPLETED:
        return True
    if last.job_id != status.job_id:
        return False
    if status.state == run_state.CANCELLED:
        return last.outcome == "cancelled"
    is_last = last.action not in recovery.GOES_ON and last.outcome == "failed"
    decided = last.action == recovery.STOP or last.kind != "signal"
    return status.state == run_state.FAILED and is_last and decided


def _marks(experiment: ExperimentPaths, unfinished: Sequence[int]) -> list[Any] | None:
    """Return what tells whether anything that a row was made of has changed; None if unknown."""
    try:
        submissions = experiment.submissions()
        runs = [experiment.run(number) for number in unfinished]
        names = sorted(shared_look.names(experiment.annotations))
        notes = [experiment.annotations / name for name in names]
        opened = [experiment.runs_directory, *notes, *(one.journal for one in submissions)]
        opened += [path for run in runs for path in (run.ledger, run.intent)]
        # Written once, as a whole.
        whole = [path for one in submissions for path in (one.plan, one.submission)]
        head = [
            [one.number for one in submissions],
            names,
            permissions.owner(submissions[-1].directory) if submissions else None,
        ]
        return [head, *map(shared_look.mark, opened), *map(shared_look.known_mark, whole)]
    except (OSError, BrokenFile):
        return None
