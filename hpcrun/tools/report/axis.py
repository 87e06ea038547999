"""What an axis shows: all values, or where few would flatten the rest, the rest.

templates/report/axes.js does the same for the charts of scripts; a test puts the same cases to
both. Values are finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# What is clipped would leave less than this part of the axis to the rest.
_PART = 1 / 4
# The decades that a logarithmic axis spans at least.
_DECADES = 2


@dataclass(frozen=True)
class Axis:
    """The range of values to show."""

    low: float
    high: float
    log: bool
    """The scale is logarithmic; all values are positive."""
    beyond: tuple[bool, ...]
    """Whether each line goes beyond the range."""

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high one, others outside."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low)


def fit(lines: Sequence[Sequence[float]]) -> Axis:
    """Choose the axis of lines, each a list of values: where few of them would flatten the rest
    (which would have less than a quarter of the axis), that of the rest.

    The rest is what lies in the middle 80 % of the lines (of each line of 8 values or more, the
    middle 96 %), and no further than 1.5 times that range from it. Where all values are positive
    and span two decades, also without a tenth at each end, the scale is logarithmic.
    """
    known = [line for line in lines if line]
    if not known:
        return Axis(0.0, 1.0, False, ())
    if all(value > 0 for line in known for value in line):
        low, high = _middle([_inner(line, 10, 0.1) for line in known], 10)
        if high / low >= 10**_DECADES:
            bottom, top, beyond = _clip([[math.log10(value) for value in line] for line in known])
            if top - bottom >= _DECADES:
                return Axis(10**bottom, 10**top, True, _placed(lines, beyond))
    low, high, beyond = _clip(known)
    return Axis(low, high, False, _placed(lines, beyond))


def _clip(lines: Sequence[Sequence[float]]) -> tuple[float, float, list[bool]]:
    """Return the least and the greatest value to show, and which lines go beyond."""
    ends = [(min(line), max(line)) for line in lines]
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    low, high = _middle([_inner(line, 8, 0.02) for line in lines], 3)
    room = 1.5 * (high - low)
    inside = [value for line in lines for value in line if low - room <= value <= high + room]
    if high > low and min(inside) < max(inside):
        bottom, top = min(inside), max(inside)
        if (top - bottom) < _PART * (last - first):
            return bottom, top, [least < bottom or most > top for least, most in ends]
    return first, last, [False] * len(ends)


def _middle(ranges: Sequence[tuple[float, float]], few: int) -> tuple[float, float]:
    """Return the range without the tenth of the ranges that reach furthest, at each end."""
    low, _ = _inner([low for low, _ in ranges], few, 0.1)
    _, high = _inner([high for _, high in ranges], few, 0.1)
    return low, high


def _inner(values: Sequence[float], few: int, share: float) -> tuple[float, float]:
    """Return the range without a share of the values at each end; of ``few``, that of all."""
    ordered = sorted(values)
    out = 0 if len(ordered) < few else max(1, int(len(ordered) * share))
    return ordered[out], ordered[-1 - out]


def _placed(lines: Sequence[Sequence[float]], beyond: Sequence[bool]) -> tuple[bool, ...]:
    found = iter(beyond)
    return tuple(bool(line) and next(found) for line in lines)
