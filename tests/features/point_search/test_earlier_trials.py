"""What other experiments found out, as a search is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.freeze import CompiledRun
from hpcrun.errors import UsageError
from hpcrun.features.point_search import FEATURE, study
from hpcrun.state import plan_file
from hpcrun.state.plan import SEARCH
from tests.support.experiment import TRAIN, Experiment

SPACE = {
    "config.opt": {"choice": ["sgd", "adam"]},
    "config.lr": {"uniform": [0.0, 1.0]},
    "config.momentum": {"uniform": [0.0, 1.0], "when": {"config.opt": ["sgd"]}},
}
ADAM = {"config.opt": "adam", "config.lr": 0.5}


def _of_a_search(root: Path, **search: Any) -> list[CompiledRun]:
    asked = {"space": SPACE, "sampler": "tpe", "seed": 0, "first": [], **search}
    made = Experiment(root / "made")
    made.submit([0, 1], spec={SEARCH: asked, "name": "made"})
    (spec, *_) = (run.spec for run in plan_file.read(made.paths.submission(1).plan).runs)
    return [CompiledRun(f"identity {at}", f"trial {at}", {}, TRAIN, spec) for at in range(2)]


def test_runs_that_are_told(tmp_path: Path) -> None:
    old = Experiment(tmp_path, "old")
    swept: dict[int, dict[str, Any]] = {
        0: ADAM,
        1: {"config.opt": "sgd", "config.lr": 1, "config.momentum": 0.9},
        2: {"config.opt": "sgd", "config.lr": 0.1},  # no momentum
        3: {**ADAM, "config.lr": 1.5},
        4: {**ADAM, "config.opt": "lion"},
        5: ADAM,  # failed
        6: ADAM,  # logs something else
        7: ADAM,  # pruned
        8: {},
    }
    old.submit(range(9), swept=swept)
    for number in range(9):
        old.start(number)
        old.metrics(
            number, 1, [1, 2], **({"other": 1.0} if number == 6 else {"loss": 2.0 + number})
        )
        outcome = {5: "failed", 7: "pruned"}.get(number, "completed")
        old.end(number, outcome=outcome, kind="rank_crash")
    said: list[str] = []
    runs = _of_a_search(tmp_path, learn_from=["old"])
    found = FEATURE.look_up(runs, tmp_path, said.append)
    assert [run.spec[SEARCH]["told"] for run in found] == [
        [(swept[0], [2.0]), (swept[1], [3.0])]
    ] * 2
    assert said == [
        "sweep.search.learn_from: 2 of 9 runs of old are told to the sampler; not told: 2 with "
        "other keys than the space; 2 with values outside the space; 1 not completed; 1 without a "
        "value of the objective; 1 pruned"
    ]


def test_a_search_that_learns_from_none(tmp_path: Path) -> None:
    runs = _of_a_search(tmp_path)
    assert FEATURE.look_up(runs, tmp_path, print) is runs
    with pytest.raises(UsageError, match="there is no experiment missing under"):
        FEATURE.look_up(_of_a_search(tmp_path / "b", learn_from=["missing"]), tmp_path, print)


@pytest.mark.parametrize(("name", "expected"), [("made", 0), ("old", 1)])
def test_its_own_runs_are_told_once(tmp_path: Path, name: str, expected: int) -> None:
    """Those of another experiment may compute the same, and are told."""
    old = Experiment(tmp_path, name)
    old.submit([0], swept={0: ADAM})
    old.start(0)
    old.metrics(0, 1, [1], loss=2.0)
    old.end(0)
    runs = _of_a_search(tmp_path / "apart", learn_from=[name])
    (own,) = plan_file.read(old.paths.submission(1).plan).runs
    runs[0] = CompiledRun(own.identity, "", {}, TRAIN, runs[0].spec)
    (run, _) = FEATURE.look_up(runs, tmp_path, print)
    assert len(run.spec[SEARCH]["told"]) == expected


def test_what_was_told_is_learned_from(tmp_path: Path) -> None:
    """With twelve runs told, the first trial is near the best of them, and none of them again."""
    told = [[{**ADAM, "config.lr": number / 12}, [abs(number / 12 - 0.5)]] for number in range(12)]
    chosen = []
    for name, known in (("with", told), ("without", [])):
        search = Experiment(tmp_path / name)
        asked = {"space": SPACE, "sampler": "tpe", "seed": 0, "first": [], "told": known}
        search.submit(range(20), spec={SEARCH: asked})
        runs = plan_file.read(search.paths.submission(1).plan).runs
        points = [study.choose(run, search.paths) for run in runs]
        chosen.append(sum(abs(one["config.lr"] - 0.5) < 0.2 for one in points))
    assert chosen[0] >= 14 > chosen[1]
