"""The files of tags and notes: ``annotations/HOST-UID.jsonl`` of an experiment.

Each user of each host appends to a file of their own, with one write, so that nobody waits and
nothing is lost, on storage that several hosts share too; readers put the records in the order of
their times. A record has ``time`` and ``runs`` (numbers; null for all of the experiment, those to
come too), and some of ``add`` and ``remove`` (tags), ``note`` and ``clear`` (of earlier notes).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.fields import FLAG, INDICES, TEXT, TEXTS, TIME, Kinds, wrong
from hpcrun.state import files, permissions
from hpcrun.state.annotations.annotation import NOTHING, Annotation
from hpcrun.state.layout import ExperimentPaths

_KINDS: Kinds = {
    **{"time": TIME, "runs": INDICES, "note": TEXT, "clear": FLAG},
    **dict.fromkeys(("add", "remove"), TEXTS),
}
# The most bytes of one file, files of one experiment, and records that are read.
_MOST_BYTES, _MOST_FILES, _MOST_RECORDS = 1 << 22, 1_000, 20_000

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


def read(experiment: ExperimentPaths) -> list[Record]:
    """Return all records with their writers, oldest first; what no hpcrun wrote is passed over."""
    try:
        with os.scandir(experiment.annotations) as entries:
            names = sorted(one.name for one in entries if one.name.endswith(".jsonl"))
    except OSError:
        return []
    found: list[Record] = []
    for name in names[:_MOST_FILES]:
        path = experiment.annotations / name
        uid = permissions.owner(path)
        user = None if uid is None else permissions.user_name(uid)
        with contextlib.suppress(OSError):
            found += [
                (record, user)
                for record in itertools.islice(files.read_lines(path, _MOST_BYTES), _MOST_RECORDS)
                if not wrong(record, _KINDS, ("time",))
            ]
    return sorted(found, key=lambda one: float(one[0]["time"]))


def apply(
    records: Iterable[Record], begin: Mapping[int, Annotation], since: Mapping[int, float]
) -> dict[int, Annotation]:
    """Return run -> what it has, for runs that have something.

    ``begin`` is what each run's spec says; records before the time in ``since`` were about an
    earlier run of that number.
    """
    found = dict(begin)
    for record, user in records:
        numbers = record.get("runs")
        for run in found if numbers is None else numbers:
            if run in found and record["time"] >= since.get(run, 0.0):
                found[run] = found[run].changed(record, user)
    return {run: one for run, one in found.items() if one != NOTHING}
