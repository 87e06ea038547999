"""Runs that no other is better than, of a search of several objectives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe import results
from hpcrun.state import plan_file
from hpcrun.state.plan import SEARCH, RunPlan
from tests.support.experiment import Experiment


def _run(root: Path, *more: dict[str, str]) -> RunPlan:
    experiment = Experiment(root)
    spec = {
        SEARCH: {"space": {}, "more_objectives": list(more)},
        "objective": {"metric": "loss", "mode": "min"},
    }
    paths = experiment.submit([0], spec=spec)
    return plan_file.read(paths.plan).runs[0]


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("min", [(1, 5), (2, 4), (2, 5), (3, 1), (4, 1)], [0, 1, 3]),
        ("max", [(1, 5), (2, 4), (2, 5), (3, 6), (4, 7)], [0, 3, 4]),
        # Equal ones are both on the front.
        ("min", [(1, 1), (1, 1), (1, 2)], [0, 1]),
        ("min", [(math.nan, 0), (1, None), (2, 2), (math.inf, 1)], [2]),
        ("min", [], []),
    ],
)
def test_the_front(
    tmp_path: Path, mode: str, values: list[tuple[Any, Any]], expected: list[int]
) -> None:
    run = _run(tmp_path, {"metric": "seconds", "mode": mode})
    rows: list[dict[str, Any]] = [
        {"experiment": "e", "state": "completed", "loss": loss, "seconds": seconds}
        for loss, seconds in values
    ]
    rows.append({"experiment": "e", "state": "failed", "loss": 0, "seconds": 0})
    rows.append({"experiment": "other", "state": "completed", "loss": 0.5, "seconds": 0.5})
    assert results.mark_front((run, row) for row in rows)
    starred = [at for at, row in enumerate(rows) if row.get(results.PARETO) == "*"]
    assert starred == [*expected, len(values) + 1]


def test_of_one_objective_there_is_none(tmp_path: Path) -> None:
    row = {"experiment": "e", "state": "completed", "loss": 1.0}
    assert not results.mark_front([(_run(tmp_path), row)])
    assert results.PARETO not in row
