"""What Optuna is told of the other runs of a search, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.sweep import optuna_space
from hpcrun.errors import HpcrunError
from hpcrun.features.point_search import FEATURE, study
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
        self,
        root: Path,
        space: dict[str, Any],
        sampler: str = "tpe",
        more_objectives: Sequence[dict[str, str]] = (),
        **spec: Any,
    ) -> None:
        self.space, self.experiment = space, Experiment(root)
        asked = {"space": space, "sampler": sampler, "seed": 0, "first": []}
        asked["more_objectives"] = [*more_objectives]
        self.experiment.submit(range(40), spec={SEARCH: asked, **spec})

    @property
    def plan(self) -> Plan:
        return plan_file.read(self.experiment.paths.submission(1).plan)

    def choose(self, number: int) -> dict[str, Any]:
        plan = self.plan
        return study.choose(plan.run(number), self.experiment.paths)

    def give(self, number: int, values: dict[str, Any]) -> None:
        chosen_point.write(self.experiment.run(number), ChosenPoint("", values, {}, TRAIN))

    def end(self, number: int, outcome: str = "completed", **metrics: float) -> None:
        self.experiment.start(number)
        self.experiment.metrics(number, 1, [1, 2], **metrics)
        self.experiment.end(number, outcome=outcome)


def _states(search: Search, number: int) -> list[tuple[str, float | None]]:
    plan = search.plan
    space = {key: optuna_space.distribution(form) for key, form in search.space.items()}
    others = [one for one in plan.runs if one.swept and one.number != number]
    others = [one for one in others if chosen_point.fits(search.space, one.swept)]
    found = [*study._trials(others, search.experiment.paths, space)]
    return [(one.state.name, one.values[0] if one.values else None) for one in found]


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "qmc"])
def test_values_of_every_form(tmp_path: Path, sampler: str) -> None:
    search = Search(tmp_path, SPACE, sampler)
    chosen = []
    # A process takes half a second a point.
    count = 14 if sampler == "gp" else 40
    for number in range(count):
        values = search.choose(number)
        assert values == search.choose(number)
        search.give(number, values)
        if number % 2:
            search.end(number, loss=1.0 + number)
        chosen.append(values)
    assert len({str(one) for one in chosen}) == count
    assert all(1e-5 <= one["config.lr"] <= 1 for one in chosen)
    assert {type(one["config.width"]) for one in chosen} == {int}
    assert {one["config.kind"] for one in chosen} == {"a", None, True}
    assert all(len(f"{one['config.rate']:.5e}") < 13 for one in chosen)
    assert all(float(f"{one['config.rate']:.6g}") == one["config.rate"] for one in chosen)


CONDITIONAL = {
    "config.opt": {"choice": ["sgd", "adam"]},
    "config.momentum": {"uniform": [0.0, 1.0], "when": {"config.opt": ["sgd"]}},
    "config.nesterov": {"choice": [True, False], "when": {"config.opt": ["sgd"]}},
    "config.lr": {"uniform": [0.0, 1.0]},
}


def test_keys_that_only_some_runs_have(tmp_path: Path) -> None:
    """The best is sgd with a momentum near 0.8: that is learned from the runs that have one."""
    search = Search(tmp_path, CONDITIONAL)
    for number in range(40):
        values = search.choose(number)
        assert values == search.choose(number)
        is_sgd = values["config.opt"] == "sgd"
        assert ("config.momentum" in values) == ("config.nesterov" in values) == is_sgd
        search.give(number, values)
        far = abs(values["config.momentum"] - 0.8) if is_sgd else 1.0
        search.end(number, loss=far + abs(values["config.lr"] - 0.2))
    later = [chosen_point.read(search.experiment.run(number)) for number in range(20, 40)]
    near = [
        one
        for one in later
        if one is not None and abs(one.swept.get("config.momentum", 9.0) - 0.8) < 0.2
    ]
    assert len(near) >= 10  # 3 of 20 without looking


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
    search.give(9, {"config.lr": 2.0})
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
        ledger.write(paths, study.PRUNED, 1, step=2, message="loss 3 at step 2")
        search.experiment.metrics(number, 1, [1, 2], loss=3.0 + number)
        search.experiment.end(number)
    assert _states(search, 30) == [("PRUNED", 3.0 + number) for number in range(12)]
    assert search.choose(30).keys() == {"config.lr"}


def test_a_small_space_is_tried_through(tmp_path: Path) -> None:
    """Also where the sampler would go on with the best point for ever."""
    space = {"config.a": {"choice": [1, 2, 3]}, "config.b": {"int": [1, 6]}}
    search = Search(tmp_path, space)
    for number in range(18):
        values = search.choose(number)
        search.give(number, values)
        search.end(number, loss=10.0 ** (values["config.a"] + values["config.b"]))
    points = {str(chosen_point.read(search.experiment.run(number))) for number in range(18)}
    assert len(points) == 18
    # One more has to repeat one, which the sampler chooses.
    assert search.choose(18) == {"config.a": 1, "config.b": 1}


@pytest.mark.parametrize(("mode", "sampler"), [("min", "tpe"), ("max", "tpe"), ("max", "gp")])
def test_what_is_better_is_tried_more_often(tmp_path: Path, mode: str, sampler: str) -> None:
    """After ten random points, thirty near the best of a bowl; by its direction."""
    space = {"config.x": {"uniform": [-10, 10]}}
    search = Search(tmp_path, space, sampler, objective={"metric": "score", "mode": mode})
    sign = 1 if mode == "min" else -1
    for number in range(40):
        values = search.choose(number)
        search.give(number, values)
        search.end(number, score=sign * (values["config.x"] - 3) ** 2)
    later = [chosen_point.read(search.experiment.run(number)) for number in range(20, 40)]
    near = [one for one in later if one is not None and abs(one.swept["config.x"] - 3) < 3]
    assert len(near) >= 12  # 6 of 20 without looking


def test_a_grid_in_its_order(tmp_path: Path) -> None:
    """Runs that begin together take different points; those tried first are not tried again."""
    space = {
        "config.a": {"choice": [1, True]},
        "config.b": {"int": [1, 2], "when": {"config.a": [1]}},
    }
    search = Search(tmp_path, space, "grid")
    plan = search.plan
    plan.runs[0].spec[SEARCH]["first"] = [{"config.a": 1, "config.b": 2}]
    chosen = [study.choose(run, search.experiment.paths) for run in plan.runs[:3]]
    expected: list[dict[str, Any]] = [
        {"config.a": 1, "config.b": 2},
        {"config.a": 1, "config.b": 1},
        {"config.a": True},
    ]
    assert list(map(str, chosen)) == list(map(str, expected))


def test_a_grid_of_more_points_than_there_is_memory_for(tmp_path: Path) -> None:
    search = Search(
        tmp_path, {"config.a": {"int": [1, 10**12]}, "config.b": {"int": [1, 9]}}, "grid"
    )
    chosen = [search.choose(number) for number in range(10)]
    assert chosen[0] == {"config.a": 1, "config.b": 1}
    assert chosen[9] == {"config.a": 2, "config.b": 1}


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_runs_that_are_no_others_take_nothing(tmp_path: Path, sampler: str) -> None:
    """Those of an earlier configuration, or before `--new`, had the same points: they stay free."""
    search = Search(tmp_path, {"config.a": {"int": [1, 4]}}, sampler)
    spec = dict(search.plan.runs[0].spec)
    for runs in (range(4), range(40, 44)):
        submission = search.experiment.submit(runs, spec=spec)
        plan = plan_file.read(submission.plan)
        for run in plan.runs:
            search.give(run.number, study.choose(run, search.experiment.paths))
        points = [chosen_point.read(search.experiment.run(number)) for number in runs]
        assert sorted(one.swept["config.a"] for one in points if one) == [1, 2, 3, 4]


@pytest.mark.parametrize(("low", "high"), [(1e6, 1e6 + 1), (0.99999, 0.999999)])
def test_values_between_bounds_that_begin_alike(tmp_path: Path, low: float, high: float) -> None:
    """They are rounded by what tells them apart."""
    search = Search(tmp_path, {"config.x": {"uniform": [low, high]}}, "random")
    chosen = [search.choose(number)["config.x"] for number in range(20)]
    assert len({*chosen}) == 20
    assert all(low <= one <= high for one in chosen)


@pytest.mark.parametrize("sampler", ["grid", "qmc"])
def test_samplers_that_need_no_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    search = Search(tmp_path, {"config.a": {"int": [1, 40]}}, sampler)
    assert FEATURE.needs(search.plan.runs[0]) == {}
    chosen = []
    for number in range(40):
        values = search.choose(number)
        search.give(number, values)
        chosen.append(values["config.a"])
    if sampler == "grid":
        assert chosen == [*range(1, 41)]
    else:
        # Each quarter of the range has its share: ten, give or take two.
        shares = [sum(low < one <= low + 10 for one in chosen[:20]) for low in (0, 10, 20, 30)]
        assert max(shares) - min(shares) <= 2
        assert len({*chosen}) > 35


def test_what_samplers_need(tmp_path: Path) -> None:
    needed = {"gp": ["optuna", "torch", "scipy"], "cmaes": ["optuna", "cmaes"], "tpe": ["optuna"]}
    for sampler, expected in needed.items():
        run = Search(tmp_path / sampler, SPACE, sampler).plan.runs[0]
        assert [*FEATURE.needs(run)] == expected


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_runs_that_begin_together_get_different_points(tmp_path: Path, sampler: str) -> None:
    """They are asked for while others, of values near the best, still run."""
    search = Search(tmp_path, {"config.x": {"uniform": [0, 1]}}, sampler)
    for number in range(12):
        search.give(number, {"config.x": number / 12})
        search.end(number, loss=abs(number / 12 - 0.5))
    chosen = []
    for number in range(12, 18):
        values = search.choose(number)
        search.give(number, values)
        chosen.append(values["config.x"])
    assert len({*chosen}) == 6


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_several_objectives(tmp_path: Path, sampler: str) -> None:
    """The sampler tries what lies between the best of each, by last values."""
    more = [{"metric": "size", "mode": "max"}]
    search = Search(
        tmp_path,
        {"config.x": {"uniform": [-10, 10]}},
        sampler,
        objective={"metric": "loss", "mode": "min"},
        more_objectives=more,
    )
    for number in range(26):
        values = search.choose(number)
        assert values == search.choose(number)
        search.give(number, values)
        x = values["config.x"]
        search.end(number, loss=(x - 3) ** 2, size=-((x - 5) ** 2))
    later = [chosen_point.read(search.experiment.run(number)) for number in range(12, 26)]
    between = [one for one in later if one and 2 <= one.swept["config.x"] <= 6]
    assert len(between) >= 6  # 3 of 14 without looking
    # A run that lacks one of the values has failed.
    search.give(26, {"config.x": 0.5})
    search.end(26, loss=1.0)
    assert _states(search, 30)[-1] == ("FAIL", None)


def test_points_that_are_tried_first(tmp_path: Path) -> None:
    search = Search(tmp_path, {"config.x": {"uniform": [0, 1]}})
    first = [{"config.x": 0.25}, {"config.x": 1}]
    plan = search.plan
    # All runs share it.
    plan.runs[0].spec[SEARCH]["first"] = first
    chosen = [study.choose(run, search.experiment.paths) for run in plan.runs[:3]]
    assert chosen[:2] == first
    assert chosen[2]["config.x"] not in (0.25, 1)


def test_points_that_are_to_be_tried_first_later(tmp_path: Path) -> None:
    """A submit with more of them, and more trials, tries those; none twice."""
    search = Search(tmp_path, {"config.x": {"uniform": [0, 1]}}, "random")
    spec = dict(search.plan.runs[0].spec)
    for number in range(40):
        search.give(number, {"config.x": number / 100})
    spec[SEARCH] |= {"first": [{"config.x": 0.02}, {"config.x": 0.75}]}
    plan = plan_file.read(search.experiment.submit(range(42), spec=spec).plan)
    chosen = [study.choose(plan.run(number), search.experiment.paths) for number in (40, 41)]
    assert chosen[0] == {"config.x": 0.75}
    assert chosen[1]["config.x"] not in (0.02, 0.75)


def test_a_run_that_was_submitted_again(tmp_path: Path) -> None:
    """Its own plan has not the others, which count all the same, and it keeps its place."""
    search = Search(tmp_path, {"config.a": {"int": [1, 40]}}, "grid")
    (run,) = (one for one in search.plan.runs if one.number == 7)
    search.experiment.submit([7], spec=dict(run.spec))
    assert study.choose(run, search.experiment.paths) == {"config.a": 8}
    assert len(plan_file.of_search(run, search.experiment.paths).runs) == 40
    search.experiment.submit(range(50), spec=dict(run.spec))
    assert len(plan_file.of_search(run, search.experiment.paths).runs) == 50


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(HpcrunError, match="Optuna cannot be imported") as found:
        Search(tmp_path, SPACE).choose(0)
    assert found.value.hint == "pip install 'hpcrun[search]'"
