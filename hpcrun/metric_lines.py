"""Lines of ``metrics.jsonl``, written by a session or by any program of a user's."""

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


def parse(records: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
    """Those that have a step; of their fields, those that are numbers."""
    for record in records:
        step = record.get("step")
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        when = record.get("time")
        values = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, (int, float))
            and not isinstance(value, bool)
            and name not in RESERVED
        }
        yield Line(step, float(when) if isinstance(when, (int, float)) else None, values)
