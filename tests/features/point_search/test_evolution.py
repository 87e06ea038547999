"""Generations of CMA-ES, as they are replayed from runs that have ended in any order."""

from __future__ import annotations

import math
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import pytest

from hpcrun.compile.sweep import optuna_space
from hpcrun.errors import HpcrunError
from hpcrun.features.point_search import evolution, study
from hpcrun.state.plan import SEARCH
from tests.features.point_search.test_study import Search

SPACE = {
    "config.lr": {"loguniform": [1e-5, 1.0]},
    "config.rate": {"uniform": [-1.0, 1.0]},
    "config.width": {"int": [1, 64]},
    "config.size": {"int_loguniform": [1, 512]},
}
BEST = {"config.lr": 1e-2, "config.rate": 0.4, "config.width": 20, "config.size": 64}
TRIALS, AT_ONCE = 40, 4
PRUNED = optuna.trial.TrialState.PRUNED


def _distance(values: dict[str, Any]) -> float:
    """Return the squared distance of a point from the best one, each range being 1."""
    far = (
        math.log10(values["config.lr"] / BEST["config.lr"]) / 5,
        (values["config.rate"] - BEST["config.rate"]) / 2,
        (values["config.width"] - BEST["config.width"]) / 63,
        math.log2(values["config.size"] / BEST["config.size"]) / 9,
    )
    return sum(one * one for one in far)


def _run(root: Path, sampler: str, mode: str, seed: int) -> list[float]:
    """Return the distances of trials, of which several run at once."""
    search = Search(root, SPACE, sampler, objective={"metric": "score", "mode": mode})
    for run in (plan := search.plan).runs:
        run.spec[SEARCH]["seed"] = seed
    sign, found = 1 if mode == "min" else -1, []
    for begin in range(0, TRIALS, AT_ONCE):
        numbers = range(begin, begin + AT_ONCE)
        for number in numbers:
            values = study.choose(plan.run(number), search.experiment.paths)
            assert values == study.choose(plan.run(number), search.experiment.paths)
            search.give(number, values)
            found.append(_distance(values))
        for number in numbers:
            search.end(number, score=sign * found[number])
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
def test_it_moves_towards_the_best(tmp_path: Path, mode: str) -> None:
    """The last third of the trials lie far nearer to it than random ones."""
    own = _run(tmp_path / "own", "cmaes", mode, 0)
    drawn = _run(tmp_path / "drawn", "random", mode, 0)
    assert len({*own}) == TRIALS
    assert median(own[-13:]) < median(drawn) / 4


def _points(trials: list[Any], better: str = "min") -> list[dict[str, Any]]:
    space = {key: optuna_space.distribution(form) for key, form in SPACE.items()}
    drawn = evolution.points(trials, space, better=better, seed=3, draw=50)
    return [next(drawn) for _ in range(200)]


def _trial(number: int, value: float, *, pruned_at: int | None = None) -> Any:
    """Return a trial of which only the width differs: that of its number."""
    params = {**BEST, "config.width": 10 + number}
    trial = optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if pruned_at is None else PRUNED,
        params=params,
        distributions={key: optuna_space.distribution(form) for key, form in SPACE.items()},
        values=[value],
        intermediate_values={} if pruned_at is None else {pruned_at: value},
    )
    trial.datetime_complete = datetime.fromtimestamp(1000 - number)
    return trial


def test_what_a_generation_is_told() -> None:
    """Runs in the order of their ends; a pruned one is worse than complete ones."""
    few = [_trial(number, number) for number in range(7)]
    assert _points(few) == _points([])  # no generation has ended
    many = [_trial(number, number) for number in range(8)]
    assert _points(many) == _points([*reversed(many)]) != _points([])
    # In other numbers the same: it is ranks that count, and their direction.
    assert _points([_trial(number, number**3) for number in range(8)]) == _points(many)
    assert _points([_trial(number, -number) for number in range(8)], "max") == _points(many)
    pruned = [*many[:-2], _trial(6, -5.0, pruned_at=20), _trial(7, -9.0, pruned_at=10)]
    assert _points(pruned) == _points(many)
    # Later ones begin another generation, which is not over.
    assert _points([*many, _trial(-1, 0.0)]) == _points(many)
    widths = [one["config.width"] for one in _points([])]
    assert {type(one) for one in widths} == {int}
    assert 1 <= min(widths) <= max(widths) <= 64


def test_without_its_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(HpcrunError, match="cmaes cannot be used") as found:
        _points([])
    assert found.value.hint == "pip install 'hpcrun[search]'"
