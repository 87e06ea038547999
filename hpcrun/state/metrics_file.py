"""Lines of ``metrics.jsonl``, written by a session or by any program of a user's, and which of them
stand once an attempt has done steps over again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

# Fields of a line that are not metrics.
RESERVED = frozenset({"step", "time", "ranks"})


class Line(NamedTuple):
    """One line.

    Attributes
    ----------
    step
        The finished optimizer step.
    time
        When it was logged, in seconds since the epoch; None where the line does not say.
    values
        Name -> number.
    """

    step: int
    time: float | None
    values: dict[str, float]


def parse(found: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
    """Those that have a step; of their fields, those that are numbers."""
    for record in found:
        step = record.get("step")
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        values = {
            name: number
            for name, value in record.items()
            if name not in RESERVED and (number := _number(value)) is not None
        }
        yield Line(step, _number(record.get("time")), values)


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def kept(restored: int | None, first: int | None) -> int | None:
    """Up to which step the lines of earlier attempts stand; None for all of them.

    Parameters
    ----------
    restored
        The step that this attempt restored; None where it did not tell (a plain script).
    first
        The first step that it logged; None where it has logged none.
    """
    if restored is not None:
        return restored
    return first - 1 if first is not None else None
