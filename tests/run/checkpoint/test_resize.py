"""Checkpoints of real DeepSpeed engines, from which other numbers of real ranks go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import RunPaths
from tests.run.ranks import THREE, Ranks, Worlds

pytestmark = [pytest.mark.training]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "3")


def save(ranks: Ranks, run: RunPaths, **options: Any) -> tuple[dict[str, Any], list[float]]:
    """Three steps, saved; what the engine then holds, and the losses of three steps more."""
    assert set(ranks.tell("mixed", **options)) == {None}
    ranks.tell("train_mixed", steps=3)
    saved = ranks.tell("save", run=str(run.directory), step=3)
    assert isinstance(saved[0], dict), saved
    run.attempt(2).directory.mkdir(parents=True)
    held = ranks.tell("contents")[0]
    return held, ranks.tell("train_mixed", steps=3)[0]


@pytest.mark.parametrize(
    ("stage", "bf16"),
    [
        *((0, False), (1, False), (2, False), (3, False), (0, True), (1, True), (3, True)),
        # Stages 1 and 2 have one optimizer of DeepSpeed's.
        pytest.param(2, True, marks=pytest.mark.usually),
    ],
)
def test_other_numbers_of_ranks_go_on(
    worlds: Worlds, run: RunPaths, stage: int, bf16: bool
) -> None:
    held, losses = save(worlds(2), run, stage=stage, bf16=bf16)
    for size in (1, 3):
        ranks = worlds(size)
        assert restored(ranks, run, stage=stage, bf16=bf16, seed=5) == [[3, THREE]] * size
        assert ranks.tell("contents")[0] == held
        assert ranks.tell("train_mixed", steps=3)[0] == pytest.approx(losses, rel=0.01)
        counts = ranks.tell("contents")[0]["counts"]
        assert counts == [held["counts"][0] + 3]


def restored(ranks: Ranks, run: RunPaths, **options: Any) -> list[Any]:
    assert set(ranks.tell("mixed", **options)) == {None}
    return ranks.tell("restore", run=str(run.directory))


def test_states_that_all_ranks_share_and_those_that_know_what_to_do(
    worlds: Worlds, run: RunPaths
) -> None:
    states = {"loader": "hooked", "averages": "common"}
    save(worlds(2), run, stage=1, states=states)
    assert restored(worlds(3), run, stage=1, states=states) == [[3, THREE]] * 3
    assert worlds(3).tell("counts") == [{"loader": 100, "averages": 7}] * 3


@pytest.mark.parametrize(("name", "kind"), [("loader", "common"), ("position", "own")])
def test_a_state_that_is_a_ranks_own_is_refused(
    worlds: Worlds, run: RunPaths, name: str, kind: str
) -> None:
    save(worlds(2), run, stage=1, states={name: kind})
    (error,) = restored(worlds(1), run, stage=1, states={name: kind})
    assert f"the state '{name}' was saved by 2 ranks, each its own" in error
    assert "give it a method load_state_dicts(states)" in error
    assert not run.universals.exists()
    assert restored(worlds(2), run, stage=1, states={name: kind}) == [[3, THREE]] * 2


def test_an_optimizer_that_deepspeed_does_not_convert_is_refused(
    worlds: Worlds, run: RunPaths
) -> None:
    save(worlds(2), run, stage=1, optimizer="RMSprop")
    (error,) = restored(worlds(1), run, stage=1, optimizer="RMSprop")
    assert "was saved by 2 ranks, and this attempt's 1 rank cannot go on" in error
    assert "RMSprop keeps" in error
    assert "DeepSpeed converts the state of Adam\n\nhint: ask for 2 ranks again" in error
    assert restored(worlds(2), run, stage=1, optimizer="RMSprop") == [[3, THREE]] * 2


def test_places_that_deepspeed_names_wrongly_are_refused(worlds: Worlds, run: RunPaths) -> None:
    options = {"stage": 2, "zero": {"round_robin_gradients": True}}
    save(worlds(2), run, **options)
    (error,) = restored(worlds(1), run, **options)
    assert "DeepSpeed does not convert what zero_optimization.round_robin_gradients saves" in error
    assert restored(worlds(2), run, **options) == [[3, THREE]] * 2


def test_a_checkpoint_is_converted_once_and_its_form_goes_with_the_next(
    worlds: Worlds, run: RunPaths
) -> None:
    save(worlds(2), run, stage=2)
    alone = worlds(1)
    assert restored(alone, run, stage=2) == [[3, THREE]]
    form = run.universal(THREE)
    before = {path: path.stat().st_mtime_ns for path in form.rglob("*.pt")}
    assert before
    assert restored(alone, run, stage=2) == [[3, THREE]]
    assert {path: path.stat().st_mtime_ns for path in form.rglob("*.pt")} == before
    alone.tell("train_mixed", steps=1)
    assert isinstance(alone.tell("save", run=str(run.directory), step=4, attempt=2)[0], dict)
    assert not run.universals.exists()


def test_a_form_that_was_not_finished_is_made_again(worlds: Worlds, run: RunPaths) -> None:
    held, _ = save(worlds(2), run, stage=3)
    (run.universal(THREE) / "zero" / "first.weight").mkdir(parents=True)
    assert restored(worlds(1), run, stage=3) == [[3, THREE]]
    assert worlds(1).tell("contents")[0] == held


def test_a_conversion_that_fails_is_told_and_leaves_nothing(worlds: Worlds, run: RunPaths) -> None:
    save(worlds(2), run, stage=1)
    # Nothing can be made where a file is in the way of the log.
    run.attempt(2).conversion_log.mkdir()
    (error,) = restored(worlds(1), run, stage=1)
    assert error.startswith("CheckpointError: ")
    assert "Is a directory" in error
    assert not (run.universal(THREE) / "zero").exists()
