"""Beginning with the weights of another run: real DeepSpeed engines of other sizes and stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import RunPaths, experiment
from tests.run.ranks import THREE, Ranks, Worlds

pytestmark = [pytest.mark.training]

MODEL = ("first.weight", "first.bias", "scale", "frozen.weight", "last.weight", "last.bias", "seen")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("pre", "fine"):
        (tmp_path / name / "submissions").mkdir(parents=True)
    (_run(tmp_path, "fine").directory).mkdir(parents=True)
    return tmp_path


def _run(root: Path, name: str) -> RunPaths:
    return experiment(root, name).run(0)


def _pretrain(ranks: Ranks, root: Path, **options: Any) -> dict[str, list[str]]:
    assert set(ranks.tell("mixed", **options)) == {None}
    ranks.tell("train_mixed", steps=3)
    assert isinstance(ranks.tell("save", run=str(_run(root, "pre").directory), step=3)[0], dict)
    found: dict[str, list[str]] = ranks.tell("weights")[0]
    return found


def _begin(ranks: Ranks, root: Path, origin: str = "pre/0", **options: Any) -> list[Any]:
    assert set(ranks.tell("mixed", seed=5, **options)) == {None}
    return ranks.tell("begin", run=str(_run(root, "fine").directory), origin=origin)


@pytest.mark.parametrize(
    ("there", "here", "bf16"),
    [
        *((0, 3, True), (1, 2, True), (2, 0, True), (3, 1, True), (3, 3, True)),
        *((0, 3, False), (3, 1, False)),
    ],
)
def test_weights_of_another_size_and_stage(
    worlds: Worlds, root: Path, there: int, here: int, bf16: bool
) -> None:
    saved = _pretrain(worlds(2), root, stage=there, bf16=bf16)
    assert set(MODEL) <= set(saved)
    for size in (1, 3):
        ranks = worlds(size)
        assert _begin(ranks, root, stage=here, bf16=bf16) == [[THREE, 3]] * size
        for own in ranks.tell("weights"):
            assert {name: parts[0] for name, parts in own.items()} == {
                name: parts[0] for name, parts in saved.items()
            }
            # The optimizer steps from the same weights, and not from those it was made with.
            assert all(len(set(parts)) == 1 for parts in own.values())
        ranks.tell("train_mixed", steps=1)


def test_a_start_that_is_repeated_begins_with_the_same(worlds: Worlds, root: Path) -> None:
    ranks, pre = worlds(1), _run(root, "pre")
    _pretrain(ranks, root, stage=1)
    assert _begin(ranks, root, stage=1) == [[THREE, 3]]
    assert set(ranks.tell("mixed", stage=1, seed=2)) == {None}
    ranks.tell("train_mixed", steps=4)
    ranks.tell("save", run=str(pre.directory), step=4)
    assert _begin(ranks, root, stage=1) == [[THREE, 3]]
    record = json.loads(_run(root, "fine").origin.read_text())
    assert (record["from"], record["step"]) == ("pre/0", 3)


def test_what_cannot_be_begun_with_is_told_on_all_ranks(worlds: Worlds, root: Path) -> None:
    ranks = worlds(2)
    _pretrain(ranks, root, stage=1)
    assert set(ranks.tell("engine", stage=1)) == {None}
    answers = ranks.tell("begin", run=str(_run(root, "fine").directory), origin="pre/0@3")
    assert len(set(answers)) == 1
    assert "is of another model: missing there: 0.weight, 0.bias, 2.weight, 2.bias" in answers[0]
    assert "unknown here: scale, seen, first.weight, first.bias, frozen.weight, …" in answers[0]
    (answer,) = set(ranks.tell("begin", run=str(_run(root, "fine").directory), origin="pre/1"))
    # What an earlier attempt chose is chosen again.
    assert "is of another model" in answer
    _run(root, "fine").origin.unlink()
    (answer,) = set(ranks.tell("begin", run=str(_run(root, "fine").directory), origin="pre/0@7"))
    assert "has no checkpoint of step 7\n\nhint: it has those of steps 3" in answer
    (part,) = _run(root, "pre").checkpoints.glob("*/mp_rank_00_model_states.pt")
    part.write_bytes(part.read_bytes()[:-9] + b"corrupted")
    (answer,) = set(ranks.tell("begin", run=str(_run(root, "fine").directory), origin="pre"))
    assert "mp_rank_00_model_states.pt" in answer
    assert "name an earlier step of that run" in answer
