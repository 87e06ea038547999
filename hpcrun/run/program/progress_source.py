"""What the readers of a program's traces have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcrun.run.program.file_search import FoundFile
from hpcrun.state.metrics_file import RESERVED, Line

# Bytes of one file that one look takes in, and names of metrics in one line.
MOST_BYTES = 1 << 20
MOST_NAMES = 100
_MOST_NAME = 100


@dataclass(frozen=True)
class Look:
    """What there is to be read now."""

    time: float
    """Seconds since the epoch; where there is new text, when the last of it was written."""
    since: float
    """The time of the look before."""
    text: tuple[str, ...] = ()
    """New lines of rank 0's log; each update of a progress bar is one."""
    files: tuple[FoundFile, ...] | None = None
    """The files of the program; None if they were not looked for now."""
    is_last: bool = False
    """The ranks have ended."""


@dataclass
class Found:
    """What a source found."""

    lines: list[Line] = field(default_factory=list)
    total: int | None = None
    """How many steps there will be."""
    path: Path | None = None
    """The file that it is read from; None for rank 0's log."""
    is_more: bool = False
    """There is more to be read at once."""
    problem: str | None = None
    """Why nothing more is read of it, told once."""


class ProgressSource(Protocol):
    """A source of progress."""

    def poll(self, look: Look) -> Found:
        """Return what is new. May raise OSError."""


def spread(
    rows: Sequence[tuple[int, dict[str, float]]], before: int, since: float, until: float
) -> Iterator[Line]:
    """Yield rows without times as lines: the steps after ``before`` are taken to be of one length.

    They were done between the times ``since`` and ``until``, in seconds since the epoch.
    """
    reached = max((step for step, _ in rows), default=before)
    for step, values in rows:
        part = (step - before) / (reached - before) if step > before else 0.0
        yield Line(step, since + part * (until - since), values)


def named(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return values by names that a line of metrics may have."""
    found: dict[str, float] = {}
    for name, value in values:
        name = name[:_MOST_NAME]
        if len(found) < MOST_NAMES and name not in RESERVED:
            found[name] = value
    return found


def number(text: str) -> float | None:
    """Return the number that a text is; None for any other text."""
    if len(text) > _MOST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


_MOST_NUMBER = 40
_NUMBER = re.compile(r"[-+]?(?:[\d,]*\.?\d+\.?(?:[eE][-+]?\d+)?|nan|NaN|inf|Infinity)")
