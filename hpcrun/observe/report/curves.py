"""The curves of a report: as many points as its size allows, in few bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.report.downsample import lttb

TOKENS = "tokens"
DIGITS = 5

_VALUES = 300_000
_MOST, _LEAST = 1000, 24
_HUGE = 1e300  # differences of what is less are finite


@dataclass(frozen=True)
class Column:
    """Values at steps, ascending and finite."""

    steps: Sequence[int]
    values: Sequence[float]

    def thin(self, most: int) -> Column:
        """The same with at most so many points."""
        kept = lttb(self.steps, self.values, most)
        return Column([self.steps[i] for i in kept], [self.values[i] for i in kept])

    def to_data(self, usual: Sequence[int]) -> dict[str, Any]:
        """Differences of steps (left out where these are the ``usual`` ones), and values.

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
    """What is drawn of one run.

    Attributes
    ----------
    metrics
        By name.
    times
        Tenths of a second since the first of them.
    logged, kept
        Points of all metrics that are finite, and how many of them are here.
    not_finite
        Points that are not.
    """

    metrics: dict[str, Column] = field(default_factory=dict)
    times: Column = Column((), ())
    logged: int = 0
    kept: int = 0
    not_finite: int = 0


def thin(curve: Curve, runs: int) -> RunCurves:
    """The curves of one of so many runs.

    A report of few runs keeps up to a thousand points of a curve, one of many runs fewer.
    """
    columns: dict[str, Column] = {}
    logged = not_finite = 0
    most = max(_LEAST, min(_MOST, _VALUES // max(1, runs * len(curve.names))))
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
    return RunCurves(
        metrics=columns,
        times=Column(list(times), moments).thin(most),
        logged=logged,
        kept=sum(len(column.steps) for column in columns.values()),
        not_finite=not_finite,
    )


def names(runs: Iterable[RunCurves]) -> list[str]:
    """Every metric, in the order of first appearance."""
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def to_data(runs: Sequence[RunCurves], names: Sequence[str]) -> dict[str, Any]:
    """Plain data for the page: times, and of each metric the columns of all runs.

    Like stands by like, which is what a compressor wants.
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


def rounded(value: float, digits: int = DIGITS) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


def differences(numbers: Sequence[float]) -> list[float]:
    """The first number, then what each is more than the one before."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]
