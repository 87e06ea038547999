"""The columns of values: what was swept, and what else differs between the runs that are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe.read import run_values
from hpcrun.observe.read.selection import Finder, Selected
from tests.support.experiment import Experiment


@pytest.fixture
def runs(tmp_path: Path) -> list[Selected]:
    one, other = Experiment(tmp_path, "one"), Experiment(tmp_path, "other")
    one.submit(range(2), swept={n: {"config.lr": 10.0**-n} for n in range(2)})
    config = {"lr": 0.5, "model": {"depth": 9}, "extra": list(range(100)), "only": 1}
    other.submit((0,), spec={"config": config, "flags": "none"}, job_id="200")
    return Finder(tmp_path).resolve(["one", "other"])


def test_one_plan_has_the_swept_keys(runs: list[Selected]) -> None:
    assert run_values.choose_columns(runs[:2]) == (["config.lr"], 0)
    assert run_values.choose_columns(runs[2:]) == ([], 0)


def test_what_differs_between_plans_is_shown(runs: list[Selected]) -> None:
    keys, more = run_values.choose_columns(runs)
    assert keys[0] == "config.lr"
    assert {"config.model.depth", "config.only"} <= set(keys)
    # What tells little, and what is long, is counted, and shown if it is asked for.
    assert not {"config.extra", "flags", "name"} & set(keys)
    everything, none = run_values.choose_columns(runs, ["all"])
    assert {"config.extra", "flags"} <= set(everything)
    assert (len(everything) - len(keys), none) == (more, 0)
    assert [run_values.column_value(one, "config.lr") for one in runs] == [1.0, 0.1, 0.5]


def test_the_number_is_bounded(tmp_path: Path) -> None:
    for number in range(2):
        config = {f"k{key:02}": number for key in range(3)} | {
            f"w{key:02}": number + key for key in range(20)
        }
        Experiment(tmp_path, f"e{number}").submit((0,), spec={"config": config})
    keys, more = run_values.choose_columns(Finder(tmp_path).resolve(["e*"]))
    # Of keys that have the same values one is shown: the others are interpolated from it.
    assert (len(keys), more, [key for key in keys if ".k" in key]) == (
        run_values.MOST_COLUMNS,
        20 - run_values.MOST_COLUMNS,
        ["config.k00"],
    )


def test_columns_by_name(runs: list[Selected]) -> None:
    assert run_values.choose_columns(runs, ["depth", "lr"]) == (
        ["config.model.depth", "config.lr"],
        0,
    )
    with pytest.raises(UsageError, match="ends in 'depht'"):
        run_values.choose_columns(runs, ["depht"])


def test_experiments_that_are_not_alike_show_what_they_sweep(tmp_path: Path) -> None:
    """That their epochs differ says nothing of experiments that have nothing in common."""
    for number, key in enumerate(["config.a", "config.b"]):
        swept = {run: {key: run} for run in range(2)}
        Experiment(tmp_path, f"e{number}").submit(
            range(2), swept=swept, spec={"config": {"epochs": number}}
        )
    runs = Finder(tmp_path).resolve(["e*"])
    assert "config.epochs" in run_values.choose_columns(runs)[0]
    assert run_values.choose_columns(runs, alike=False) == (["config.a", "config.b"], 0)
    assert run_values.choose_columns(runs[:2], alike=False)[0] == ["config.a"]
    many = {0: {f"config.x{number}": 0 for number in range(9)}}
    Experiment(tmp_path, "e2").submit((0,), swept=many)
    keys, more = run_values.choose_columns(Finder(tmp_path).resolve(["e*"]), alike=False)
    assert (len(keys), more) == (run_values.MOST_COLUMNS, 5)
