"""Times of log lines, from the recorded sizes of the logs."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.fields import TIME, WHOLE
from hpcrun.observe.logs.tail import SizeMark, Source
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths

_MOST_BYTES = 1 << 25
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def marks(source: Source) -> list[SizeMark]:
    """Return a log's recorded sizes, oldest first; empty unless it is a rank's."""
    if source.rank is None:
        return []
    rank = str(source.rank)
    return [
        SizeMark(when, sizes[rank]) for when, sizes in _read(source.path.parent) if sizes.get(rank)
    ]


def until_now(source: Source) -> list[SizeMark]:
    """Return the recorded sizes and, last, the size and the time of the last write of now."""
    try:
        found = os.stat(source.path)
    except OSError:
        return marks(source)
    now = SizeMark(found.st_mtime, found.st_size)
    return [*(mark for mark in marks(source) if mark.size < now.size), now]


def start(source: Source, moment: float) -> int:
    """Return the offset of what was written at ``moment`` (seconds since the epoch) and later.

    Some lines may be older, by the seconds between two lines of the record: ten and more where
    there are hundreds of ranks. For a log without a record it is the beginning, or the end of one
    that has not been written to since then.
    """
    try:
        found = os.stat(source.path)
    except OSError:
        return 0
    if found.st_mtime < moment:
        return found.st_size
    return next((mark.size for mark in reversed(marks(source)) if mark.time <= moment), 0)


def parse_moment(text: str, now: float | None = None, option: str = "--since") -> float:
    """``90s``, ``10m``, ``2h``, ``1d`` ago, or a local date and time, as seconds since the epoch.

    Raises UsageError if it is neither.
    """
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip()):
        return (time.time() if now is None else now) - float(found[1]) * _UNITS[found[2]]
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option} {text!r} is neither so long ago nor a time",
            hint="write 90s, 10m, 2h or 1d, or 2026-11-22T14:30",
        ) from None


@lru_cache(maxsize=4)
def _read(directory: Path) -> list[tuple[float, dict[str, int]]]:
    found: list[tuple[float, dict[str, int]]] = []
    # A file that cannot be read tells no times.
    with contextlib.suppress(OSError):
        for line in files.read_lines(AttemptPaths(directory).log_sizes, _MOST_BYTES):
            when: Any = line.get("time")
            sizes = line.get("sizes")
            if TIME.accepts(when) and isinstance(sizes, dict):
                whole = {rank: size for rank, size in sizes.items() if WHOLE.accepts(size)}
                found.append((float(when), whole))
    return found
