"""The values of a run of a search, beside its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import chosen_point, files, history, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH, Entry
from tests.support.experiment import Experiment

POINT = ChosenPoint(
    "lr=0.5", {"config.lr": 0.5}, {"config": {"lr": 0.5}}, Entry("script", file="train.py")
)


@pytest.fixture
def search(tmp_path: Path) -> Experiment:
    found = Experiment(tmp_path)
    found.submit([0, 1], spec={SEARCH: {"space": {}}, "config": {"lr": "<lr>"}})
    return found


def test_a_plan_that_is_read_has_the_values_of_by_then(search: Experiment) -> None:
    submission = search.paths.submission(1)
    before = history.read_plan(submission)
    assert [run.spec["config"]["lr"] for run in before.runs] == ["<lr>"] * 2
    assert chosen_point.is_open(before.runs[1], search.paths.run(1))
    chosen_point.write(search.paths.run(1), POINT)
    for plan in (plan_file.read(submission.plan), history.read_plan(submission)):
        first, second = plan.runs
        assert (first.label, first.spec["config"]["lr"]) == (before.runs[0].label, "<lr>")
        assert (second.label, second.swept) == ("lr=0.5", {"config.lr": 0.5})
        assert (second.spec["config"], second.entry) == ({"lr": 0.5}, POINT.entry)
        assert second.identity == before.runs[1].identity
    assert not chosen_point.is_open(second, search.paths.run(1))


def test_the_first_values_stay(search: Experiment) -> None:
    paths = search.paths.run(0)
    chosen_point.write(paths, POINT)
    chosen_point.write(paths, ChosenPoint("lr=1", {}, {}, POINT.entry))
    assert chosen_point.read(paths) == POINT
    assert [path.name for path in paths.directory.iterdir()] == ["point"]


@pytest.mark.parametrize(
    "data",
    [
        *(None, [], {}, {"label": "a"}),
        {"label": "a", "swept": {}, "spec": {}, "entry": {"kind": 3}},
        {"label": "a", "swept": {}, "spec": {}, "entry": {"kind": "script"}, "more": 1},
        {"label": 3, "swept": {}, "spec": {}, "entry": {"kind": "script"}},
    ],
)
def test_a_broken_record_is_none(search: Experiment, data: Any) -> None:
    """The run is still open then; its job says so."""
    paths = search.paths.run(0)
    paths.point.parent.mkdir(parents=True)
    files.write_json(paths.point, data)
    assert chosen_point.read(paths) is None
    assert plan_file.read(search.paths.submission(1).plan).runs[0].swept == {}


def test_a_run_of_no_search_has_no_point(tmp_path: Path) -> None:
    plain = Experiment(tmp_path)
    plain.submit([0])
    chosen_point.write(plain.paths.run(0), POINT)
    (run,) = plan_file.read(plain.paths.submission(1).plan).runs
    assert run.label != "lr=0.5"
    assert not chosen_point.is_open(run, plain.paths.run(0))


SPACE = {
    "a": {"choice": [1, True, "x"]},
    "b": {"int": [1, 3], "when": {"a": [1, "x"]}},
    "c": {"uniform": [0, 1], "when": {"b": [2], "a": ["x"]}},
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"a": True}, True),
        ({"a": 1}, False),
        ({"a": 1, "b": 2}, True),
        ({"a": True, "b": 2}, False),
        ({"a": "x", "b": 2}, False),
        ({"a": "x", "b": 2, "c": 0.5}, True),
        ({"a": "x", "c": 0.5}, False),
        ({"a": True, "b": 2, "c": 0.5}, False),
        ({}, False),
        ({"a": True, "d": 1}, False),
    ],
)
def test_the_keys_that_a_space_calls_for(values: dict[str, Any], expected: bool) -> None:
    assert chosen_point.fits(SPACE, values) == expected
