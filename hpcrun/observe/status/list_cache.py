"""Rows of `hpcrun list` of experiments whose runs are settled, kept by this user on this host.

A row is used again as long as what it was made of is the same, by its server's word: submissions,
journals, plans, tags, the directory of runs, and the ledger and intent of each run that has not
completed. That of one that has is final, and is not looked at: whoever removes it by hand sees the
row of before. What changed a moment ago is not kept, as a second change may leave the same time. A
file that is torn, of another hpcrun or of another root holds no row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import bounded_json, shared_look
from hpcrun.errors import BrokenFile
from hpcrun.host import expand_home
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import Observed
from hpcrun.policy import recovery
from hpcrun.state import files, ledger, permissions
from hpcrun.state.layout import ExperimentPaths

# What a row holds, and by which rules; another number forgets all rows.
FORMAT = 1


@dataclass(frozen=True)
class SettledRow:
    """A row, and what it holds for."""

    row: dict[str, Any]
    unfinished: list[int]
    """The runs that have not completed, whose ledger and intent are part of the mark."""
    jobs: list[str]
    """Their jobs in Slurm: one that waits there again makes its run go on."""
    marks: list[Any]


@dataclass
class ListCache:
    """The rows of one root, read from this user's cache file."""

    root: Path
    _kept: dict[str, SettledRow] = field(default_factory=dict)
    _used: dict[str, SettledRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            head, _, body = files.read_bytes(self.path).partition(b"\n")
            if head == _digest(body):
                found = bounded_json.parse(body)
                if found["of"] == self._identity:
                    self._kept = {name: SettledRow(*one) for name, one in found["rows"].items()}

    @cached_property
    def path(self) -> Path:
        """The file, which the root need not let this user write."""
        base = expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        name = hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:12]
        return base / "hpcrun" / f"list-{name}.json"

    @cached_property
    def _identity(self) -> list[Any]:
        return [FORMAT, hpcrun.__version__, os.path.realpath(self.root)]

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
        limit = (since - shared_look.SEEN_WITHIN) * 1e9
        if marks is not None and all(mark is None or mark[2] < limit for mark in marks[1:]):
            self._used[experiment.name] = SettledRow(row, unfinished, jobs, marks)

    def write(self) -> None:
        """Write the rows that were found and kept; ignore errors, since they are optional."""
        if self._used == self._kept:
            return
        rows = {name: list(vars(one).values()) for name, one in self._used.items()}
        body = json.dumps({"of": self._identity, "rows": rows}, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(self.path, _digest(body) + b"\n" + body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


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
