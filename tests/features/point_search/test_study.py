"""What Optuna is told of the other runs of a search, and what it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.features.point_search import pruning, study
from hpcrun.policy import recovery
from hpcrun.state import chosen_point, ledger, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH, Plan
from tests.support.experiment import TRAIN, Experiment

SPACE = {
    "config.lr": {"loguniform": [1e-05, 1.0]},
    "config.width": {"int": [1, 64]},
    "config.kind": {"choice": ["a", None, True]},
    "config.rate": {"uniform": [0.0, 0.1]},
    "config.size": {"int_loguniform": [1, 512]},
}


class Search:
    """A search of forty trials under a directory."""

    def __init__(
        self, root: Path, space: dict[str, Any], sampler: str = "tpe", **spec: Any
    ) -> None:
        self.space, self.experiment = space, Experiment(root)
        asked = {"space": space, "sampler": sampler, "seed": 0, "first": []}
        self.experiment.submit(range(40), spec={SEARCH: asked, **spec})

    @property
    def plan(self) -> Plan:
        return plan_file.read(self.experiment.paths.submission(1).plan)

    def choose(self, number: int) -> dict[str, Any]:
        plan = self.plan
        return study.choose(plan, plan.run(number), self.experiment.paths)

    def give(self, number: int, values: dict[str, Any]) -> None:
        chosen_point.write(self.experiment.run(number), ChosenPoint("", values, {}, TRAIN))

    def end(self, number: int, outcome: str = "completed", **metrics: float) -> None:
        self.experiment.start(number)
        self.experiment.metrics(number, 1, [1, 2], **metrics)
        self.experiment.end(number, outcome=outcome)


def _states(search: Search, number: int) -> list[tuple[str, float | None]]:
    plan = search.plan
    space = {key: study._distribution(form) for key, form in search.space.items()}
    run = plan.run(number)
    found = [*study._trials(plan, run, search.experiment.paths, space)]
    return [(one.state.name, one.value) for one in found]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_of_every_form(tmp_path: Path, sampler: str) -> None:
    search = Search(tmp_path, SPACE, sampler)
    chosen = []
    for number in range(40):
        values = search.choose(number)
        assert values == search.choose(number)
        search.give(number, values)
        if number % 2:
            search.end(number, loss=1.0 + number)
        chosen.append(values)
    assert len({str(one) for one in chosen}) == 40
    assert all(1e-5 <= one["config.lr"] <= 1 for one in chosen)
    assert {type(one["config.width"]) for one in chosen} == {int}
    assert {one["config.kind"] for one in chosen} == {"a", None, True}
    assert all(len(f"{one['config.rate']:.5e}") < 13 for one in chosen)
    assert all(float(f"{one['config.rate']:.6g}") == one["config.rate"] for one in chosen)


def test_how_the_others_count(tmp_path: Path) -> None:
    search = Search(tmp_path, {"config.lr": {"uniform": [0, 1]}})
    for number in range(7):
        search.give(number, {"config.lr": number / 10})
    search.end(0, loss=2.5)
    search.end(1, loss=float("inf"))  # never finite
    search.end(2, other=1.0)  # the metric was not logged
    search.end(3, outcome="failed", kind="rank_crash")  # to be started again
    search.experiment.start(4)
    ledger.set_intent(search.experiment.run(5), ledger.CANCELLED)
    search.give(8, {"config.another": 1})  # of another space
    expected = [("COMPLETE", 2.5), ("FAIL", None), ("FAIL", None), ("RUNNING", None)]
    assert _states(search, 6) == [*expected, ("RUNNING", None), ("FAIL", None)]
    assert len(_states(search, 30)) == 7


def test_a_run_that_is_not_started_again_has_failed(tmp_path: Path) -> None:
    search = Search(tmp_path, {"config.lr": {"uniform": [0, 1]}})
    search.give(0, {"config.lr": 0.5})
    search.end(0, outcome="failed", kind="rank_crash")
    paths = search.experiment.run(0)
    ledger.write(paths, ledger.DECIDED, 1, action=recovery.STOP, reason="its failures are spent")
    assert _states(search, 1) == [("FAIL", None)]


def test_a_run_that_was_pruned(tmp_path: Path) -> None:
    """Its value is that of the step at which it ended."""
    search = Search(tmp_path, {"config.lr": {"uniform": [0, 1]}})
    for number in range(12):
        search.give(number, {"config.lr": number / 12})
        search.experiment.start(number)
        paths = search.experiment.run(number)
        ledger.write(paths, pruning.PRUNED, 1, step=2, message="loss 3 at step 2")
        search.experiment.metrics(number, 1, [1, 2], loss=3.0 + number)
        search.experiment.end(number)
    assert _states(search, 30) == [("PRUNED", 3.0 + number) for number in range(12)]
    assert search.choose(30).keys() == {"config.lr"}


def test_a_small_space_is_tried_through(tmp_path: Path) -> None:
    space = {"config.a": {"choice": [1, 2, 3]}, "config.b": {"int": [1, 3]}}
    search = Search(tmp_path, space)
    for number in range(9):
        search.give(number, search.choose(number))
        search.end(number, loss=float(number))
    points = {str(chosen_point.read(search.experiment.run(number))) for number in range(9)}
    assert len(points) == 9
    # One more has to repeat one.
    assert search.choose(9).keys() == space.keys()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_what_is_better_is_tried_more_often(tmp_path: Path, mode: str) -> None:
    """After ten random points, thirty near the best of a bowl; by its direction."""
    space = {"config.x": {"uniform": [-10, 10]}}
    search = Search(tmp_path, space, objective={"metric": "score", "mode": mode})
    sign = 1 if mode == "min" else -1
    for number in range(40):
        values = search.choose(number)
        search.give(number, values)
        search.end(number, score=sign * (values["config.x"] - 3) ** 2)
    later = [chosen_point.read(search.experiment.run(number)) for number in range(20, 40)]
    near = [one for one in later if one is not None and abs(one.swept["config.x"] - 3) < 3]
    assert len(near) >= 12  # 6 of 20 without looking


def test_points_that_are_tried_first(tmp_path: Path) -> None:
    search = Search(tmp_path, {"config.x": {"uniform": [0, 1]}})
    first = [{"config.x": 0.25}, {"config.x": 1}]
    plan = search.plan
    # All runs share it.
    plan.runs[0].spec[SEARCH]["first"] = first
    chosen = [study.choose(plan, run, search.experiment.paths) for run in plan.runs[:3]]
    assert chosen[:2] == first
    assert chosen[2]["config.x"] not in (0.25, 1)


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(HpcrunError, match="Optuna cannot be imported") as found:
        Search(tmp_path, SPACE).choose(0)
    assert found.value.hint == "pip install 'hpcrun[search]'"
