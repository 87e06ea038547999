"""Lines of ``metrics.jsonl``, and which of them later attempts replace.

A session writes them, or any program of a user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun.fields import LAST_TIME, MOST
from hpcrun.state import files

# Fields of a line that are not metrics.
RESERVED = frozenset({"step", "time", "ranks"})


class Line(NamedTuple):
    """One line of the file."""

    step: int
    """The finished optimizer step."""
    time: float | None
    """The time of logging, in seconds since the epoch; None if the line has no time."""
    values: dict[str, float]


def parse(found: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
    """Yield the lines that have a step, with those of their fields that are numbers."""
    for record in found:
        step = record.get("step")
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if type(step) is not int or not -MOST < step < MOST:
            continue
        values = {
            name: number
            for name, value in record.items()
            if name not in RESERVED and (number := _number(value)) is not None
        }
        time = _number(record.get("time"))
        yield Line(step, time if time is not None and 0 <= time <= LAST_TIME else None, values)


def first_step(path: Path) -> int | None:
    """Return the first step of a file; None if it has none, or cannot be read."""
    try:
        return next((line.step for line in parse(files.read_lines(path))), None)
    except OSError:
        return None


def last_step(path: Path) -> int | None:
    """Return the furthest of a file's last steps: a program may count some of them once more.

    None if it has none, or cannot be read.
    """
    try:
        lines = files.read_tail(path, _TAIL_BYTES).split(b"\n")
    except OSError:
        return None
    return max((line.step for line in parse(files.objects(lines))), default=None)


_TAIL_BYTES = 1 << 14


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def last_kept_step(restored: int | None, first: int | None) -> int | None:
    """Return the step up to which the lines of earlier attempts stand; None for all of them.

    ``restored`` is the step that this attempt restored, None if it did not record one (a plain
    script); ``first`` is the first step that it logged, if any.
    """
    return first - 1 if restored is None and first is not None else restored
