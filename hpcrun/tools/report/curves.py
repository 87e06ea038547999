"""The curves of a report, thinned to the points that its size allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.observe.read.metric_curves import Curve, differences, rounded

TOKENS = "tokens"

# Points of all curves together; the most and the least of one curve.
_POINTS, _MOST, _LEAST = 300_000, 1000, 24
_HUGE = 1e300  # the difference of two smaller values is finite


@dataclass(frozen=True)
class Column:
    """Values at steps, ascending and finite."""

    steps: Sequence[int]
    values: Sequence[float]

    def thin(self, most: int) -> Column:
        """Return at most so many of the points."""
        kept = lttb(self.steps, self.values, most)
        return Column([self.steps[i] for i in kept], [self.values[i] for i in kept])

    def to_data(self, usual: Sequence[int]) -> dict[str, Any]:
        """Return differences of steps (``s``, unless these are the ``usual`` ones), and values.

        Whole numbers are differences too (``d``), others have `DIGITS` significant digits (``v``).
        """
        data: dict[str, Any] = {}
        if self.steps != usual:
            data["s"] = differences(self.steps)
        if all(float(value).is_integer() and abs(value) < 1 << 53 for value in self.values):
            data["d"] = differences([int(value) for value in self.values])
        else:
            data["v"] = [rounded(value) for value in self.values]
        return data


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run."""

    metrics: dict[str, Column] = field(default_factory=dict)
    times: Column = Column((), ())
    """Tenths of a second since the first of them."""
    logged: int = 0
    """The number of points of all metrics that are finite."""
    not_finite: int = 0
    """The number of those that are not."""

    @property
    def kept(self) -> int:
        """The number of points that are here."""
        return sum(len(column.steps) for column in self.metrics.values())


def thin(curve: Curve, runs: int) -> RunCurves:
    """Return the curves of one of so many runs: the more runs, the fewer points of each."""
    columns: dict[str, Column] = {}
    logged = not_finite = 0
    most = max(_LEAST, min(_MOST, _POINTS // max(1, runs * len(curve.names))))
    for name in curve.names:
        pairs = curve.values(name)
        finite = [pair for pair in pairs if abs(pair[1]) < _HUGE]
        not_finite += len(pairs) - len(finite)
        logged += len(finite)
        if finite:
            steps, values = zip(*finite, strict=True)
            columns[name] = Column(list(steps), list(values)).thin(most)
    times = {step: moment for step, moment in curve.times.items() if math.isfinite(moment)}
    first = min(times.values(), default=0.0)
    moments = [round(10 * (moment - first)) for moment in times.values()]
    return RunCurves(columns, Column(list(times), moments).thin(most), logged, not_finite)


def to_data(runs: Sequence[RunCurves], names: Sequence[str]) -> dict[str, Any]:
    """Return plain data for the page: times, and the columns of all runs by metric.

    Like stands by like, which compresses well.
    """
    return {
        "steps": [differences(run.times.steps) for run in runs],
        "times": [differences(run.times.values) for run in runs],
        "columns": [
            [
                run.metrics[name].to_data(run.times.steps) if name in run.metrics else None
                for run in runs
            ]
            for name in names
        ],
    }


def lttb(xs: Sequence[float], ys: Sequence[float], most: int) -> list[int]:
    """Downsample by largest triangles in three buckets (Steinarsson, 2013).

    Of finite ``xs``, ascending, and as many ``ys``, return the ascending indices of the ``most``
    points (at least 3) to keep, the first and the last among them.
    """
    count = len(xs)
    if count <= most:
        return list(range(count))
    size = (count - 2) / (most - 2)
    edges = [*(1 + int(size * bucket) for bucket in range(most - 2)), count - 1, count]
    kept = [0]
    for start, end, after in zip(edges, edges[1:], edges[2:], strict=False):
        x = sum(xs[end:after]) / (after - end)
        y = sum(ys[end:after]) / (after - end)
        before_x, before_y = xs[kept[-1]], ys[kept[-1]]
        wide, high = before_x - x, y - before_y
        kept.append(
            max(
                range(start, end),
                key=lambda i: abs(wide * (ys[i] - before_y) - (before_x - xs[i]) * high),
            )
        )
    return [*kept, count - 1]
