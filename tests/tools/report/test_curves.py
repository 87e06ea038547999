"""Fewer points that look like all of them, and what becomes of them on the way to the page."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.read.metric_curves import Curve
from hpcrun.tools.report import curves
from hpcrun.tools.report.curves import lttb

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=300), st.integers(3, 60))
def test_the_ends_stay_and_nothing_is_out_of_order(values: list[float], most: int) -> None:
    kept = lttb(range(len(values)), values, most)
    assert len(kept) == min(most, len(values))
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(values) - 1)


def test_a_spike_stays() -> None:
    values = [1.0] * 10_000
    values[6_543] = 7.0
    assert 6_543 in lttb(range(10_000), values, 50)


def curve(points: int, **metrics: float) -> Curve:
    steps = {
        10 * place: {name: value + math.sin(place) for name, value in metrics.items()}
        for place in range(1, points + 1)
    }
    return Curve(steps, None, {step: 1.7e9 + step / 10 for step in steps})


def test_a_curve_comes_back_as_it_was_written() -> None:
    made = curve(400, loss=2.5)
    for step, values in made.steps.items():
        values["tokens"] = step * 1_048_576.0
        if step % 500 == 0:
            values["eval/loss"] = 3.0 + step
    run = curves.thin(made, runs=20)
    names = [*run.metrics]
    assert names == ["loss", "tokens", "eval/loss"]
    data = curves.to_data([run], names)
    steps = list(accumulate(data["steps"][0]))
    assert steps == list(made.steps)
    assert list(accumulate(data["times"][0]))[-1] == 399 * 10
    loss, tokens, evaluated = (columns[0] for columns in data["columns"])
    assert "s" not in loss
    assert loss["v"] == pytest.approx([v["loss"] for v in made.steps.values()], rel=1e-4)
    assert list(accumulate(tokens["d"])) == [step * 1_048_576 for step in steps]
    assert list(accumulate(evaluated["s"])) == [500 * place for place in range(1, 9)]


def test_values_that_are_no_numbers_are_counted_and_left_out() -> None:
    made = curve(10, loss=1.0)
    made.steps[30]["loss"] = math.nan
    made.steps[40]["loss"] = math.inf
    made.steps[50]["loss"] = -1.7e308
    run = curves.thin(made, runs=1)
    assert (run.logged, run.kept, run.not_finite) == (7, 7, 3)
    assert 30 not in run.metrics["loss"].steps
    made.steps = {step: {"loss": math.nan} for step in made.steps}
    assert curves.thin(made, runs=1).metrics == {}


def test_the_more_runs_the_fewer_points() -> None:
    made = curve(5_000, loss=1.0, accuracy=0.5)
    kept = [len(curves.thin(made, runs).metrics["loss"].steps) for runs in (1, 1_000, 10**6)]
    assert kept == [1_000, 150, 24]


def test_a_run_that_logged_nothing() -> None:
    run = curves.thin(Curve(), runs=3)
    assert curves.to_data([run], []) == {"steps": [[]], "times": [[]], "columns": []}
