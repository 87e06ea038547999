"""Tags and notes, and their files: ``annotations/HOST-UID.jsonl`` of an experiment.

Each user of each host appends to a file of their own, with one write, so that nobody waits and
nothing is lost, on storage that several hosts share too; readers put the records in the order of
their times. A record has ``time`` and ``runs`` (numbers; null for all of the experiment, those to
come too), and some of ``add`` and ``remove`` (tags), ``note`` and ``clear`` (of earlier notes).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.fields import FLAG, INDICES, TEXT, TEXTS, TIME, Kinds, wrong
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files, permissions
from hpcrun.state.layout import ExperimentPaths
from hpcrun.text import Say

MOST_TAGS = 100
MOST_NOTE, MOST_NOTES = 4_000, 200
ACCEPTED = "letters, digits and . _ : / -, 64 at most, a letter or digit first"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")


@dataclass(frozen=True)
class Note:
    """One note."""

    text: str
    user: str | None = None
    """Login name of the owner of the file that it is in; None for the spec's ``notes``."""
    time: float | None = None
    """Seconds since the epoch; None for the spec's."""


@dataclass(frozen=True)
class Annotation:
    """The tags and notes of a run."""

    tags: tuple[str, ...] = ()
    """In the order in which they were given."""
    notes: tuple[Note, ...] = ()
    """The newest `MOST_NOTES`, oldest first."""

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {"tags": [*self.tags], "notes": [dict(vars(note)) for note in self.notes]}

    def changed(self, record: Mapping[str, Any], user: str | None) -> Annotation:
        """Return what it becomes by a record of this user's."""
        removed = set(record.get("remove") or ())
        tags = [tag for tag in self.tags if tag not in removed]
        added = [tag for tag in record.get("add") or () if is_tag(tag)]
        notes = () if record.get("clear") else self.notes
        if text := record.get("note"):
            notes = (*notes, Note(text[:MOST_NOTE], user, record.get("time")))
        return Annotation(tuple(dict.fromkeys([*tags, *added]))[:MOST_TAGS], notes[-MOST_NOTES:])


NOTHING = Annotation()


def is_tag(text: str) -> bool:
    """Check whether a text can be a tag: one that no shell, table or condition reads as more."""
    return _TAG.fullmatch(text) is not None


def of_spec(spec: Mapping[str, Any]) -> Annotation:
    """Return what a run's spec says of it."""
    tags: Sequence[str] = spec.get("tags") or ()
    notes = spec.get("notes")
    if not tags and not notes:
        return NOTHING
    return Annotation(tuple(filter(is_tag, tags)), (Note(notes),) if notes else ())


_KINDS: Kinds = {
    **dict.fromkeys(("add", "remove"), TEXTS),
    "time": TIME,
    "runs": INDICES,
    "note": TEXT,
    "clear": FLAG,
}
# The most bytes, files and records of one experiment that are read, and changes of runs.
_MOST_BYTES, _MOST_FILES, _MOST_RECORDS, _MOST_CHANGES = 1 << 25, 1_000, 200_000, 5_000_000

Record = tuple[dict[str, Any], str | None]


def append(experiment: ExperimentPaths, runs: Iterable[int] | None, **change: Any) -> None:
    """Append a record; ``runs=None`` is about the whole experiment.

    Raises UsageError if this user may not write it.
    """
    path = experiment.annotations / f"{os.uname().nodename}-{os.geteuid()}.jsonl"
    numbers = None if runs is None else sorted(runs)
    try:
        with contextlib.suppress(FileExistsError):
            experiment.annotations.mkdir()
        files.append(path, {"time": time.time(), "runs": numbers, **change})
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_writable(experiment: ExperimentPaths, verb: str) -> None:
    """Raise UsageError unless this user may append: as the owner, or as one whom the owner lets.

    The owner lets the group by a profile's umask, and by the first tag or note.
    """
    uid = permissions.owner(experiment.directory.resolve())
    there = experiment.annotations
    if uid in (None, os.geteuid()) or os.geteuid() == 0:
        permissions.check_mine(experiment, (), verb)
    elif there.is_symlink() or not os.access(there, os.W_OK | os.X_OK):
        name = permissions.user_name(uid)
        raise UsageError(
            f"{experiment.name}: these runs are {name}'s, and you may not write to {there}",
            hint=f'{name} lets a group {verb} them: `umask: "0007"` and `group` in the cluster '
            f"profile, and a first `hpcrun tag` or `note` of {name}'s own",
        )


def read(experiment: ExperimentPaths, warn: Say = lambda message: None) -> list[Record]:
    """Return all records with their writers, oldest first; what no hpcrun wrote is passed over.

    ``warn`` is told of files that cannot be read, or hold more than people ever write.
    """
    try:
        with os.scandir(experiment.annotations) as entries:
            names = sorted(one.name for one in entries if one.name.endswith(".jsonl"))
    except OSError:
        return []
    found: list[Record] = []
    left = _MOST_BYTES
    for name in names[:_MOST_FILES]:
        path = experiment.annotations / name
        try:
            owned = path.lstat()
            user = permissions.user_name(owned.st_uid)
            found += [
                (record, user)
                for record in files.read_lines(path, left)
                if not wrong(record, _KINDS, ("time",))
            ]
            left = max(0, left - owned.st_size)
        except OSError as error:
            warn(f"passed over: {BrokenFile.of(path, error).message}")
    if len(names) > _MOST_FILES or len(found) > _MOST_RECORDS:
        warn(f"passed over: some of {experiment.annotations}, which holds more than is read")
    return sorted(found[:_MOST_RECORDS], key=lambda one: float(one[0]["time"]))


def apply(
    records: Iterable[Record],
    begin: Mapping[int, Annotation],
    since: Mapping[int, float],
    warn: Say = lambda message: None,
) -> dict[int, Annotation]:
    """Return run -> what it has, for runs that have something.

    ``begin`` is what each run's spec says; records before the time in ``since`` were about an
    earlier run of that number.
    """
    found = dict(begin)
    left = _MOST_CHANGES
    for record, user in records:
        numbers = record.get("runs")
        # Most of many runs have the same.
        after: dict[int, Annotation] = {}
        left -= len(found if numbers is None else numbers)
        if left < 0:
            warn("passed over: the newest tags and notes, as there are more than people ever write")
            break
        for run in found if numbers is None else numbers:
            if run in found and record["time"] >= since.get(run, 0.0):
                before = found[run]
                if id(before) not in after:
                    after[id(before)] = before.changed(record, user)
                found[run] = after[id(before)]
    return {run: one for run, one in found.items() if one != NOTHING}
