"""Whole weights of checkpoints that real engines of two ranks have saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import CheckpointError
from hpcrun.run.weights import saved_weights
from hpcrun.state.layout import RunPaths, experiment
from tests.run.ranks import Ranks
from tests.support.needs_tool import needs_tool

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.training, needs_tool("weights")]

TIED = {"head.weight": "embed.weight"}


@pytest.fixture(scope="module")
def ranks(own_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    directory = tmp_path_factory.mktemp("ranks")
    made = Ranks(2, own_operators, directory, module="tests.run.weights.weights_rank")
    yield made
    made.stop()


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    found = experiment(tmp_path, "study").run(0)
    found.directory.mkdir(parents=True)
    return found


def _saved(ranks: Ranks, run: RunPaths, what: str, **options: Any) -> str:
    """Train and save; the engine's loss at that step."""
    assert set(ranks.tell(what, **options)) == {None}
    ranks.tell("advance", steps=3)
    assert isinstance(ranks.tell("save", run=str(run.directory), step=3)[0], dict)
    (loss,) = set(ranks.tell("loss"))
    assert float.fromhex(loss) > 0
    return str(loss)


def _exported(ranks: Ranks, run: RunPaths, out: Path, dtype: str | None = None) -> dict[str, Any]:
    record = ranks.tell("export", run=str(run.directory), directory=str(out), dtype=dtype)[0]
    assert isinstance(record, dict), record
    return record


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_plain_model_has_the_loss_of_the_engine(
    ranks: Ranks, run: RunPaths, tmp_path: Path, stage: int, kind: str
) -> None:
    loss = _saved(ranks, run, "tied", stage=stage, kind=kind)
    record = _exported(ranks, run, tmp_path / "out", None if kind == "fp32" else kind)
    assert set(ranks.tell("plain_loss", directory=str(tmp_path / "out"))) == {loss}
    # The embedding, two layers with a bias and one without, the norm; two buffers are not counted.
    assert record["parameters"] == 11 * 8 + (8 * 8 + 8) + 16 * 8 + (8 * 16 + 8) + 2 * 8
    (checkpoint,) = run.checkpoints.glob("step-*")
    names = [path.name for path in checkpoint.iterdir()]
    weights = saved_weights.collect(checkpoint, names)
    assert (weights.tied, weights.buffers) == (TIED, {"seen", "count"})
    assert weights.tensors["count"].item() == 3
    trained = {str(weights.tensors[name].dtype) for name in ("embed.weight", "up_proj.weight")}
    # The optimizer of ZeRO has copies in fp32, frozen weights have none.
    halved = kind == "bf16" and stage == 0
    assert trained == {"torch.bfloat16" if halved else "torch.float32"}
    assert bool(weights.notes) == (kind == "bf16")


@pytest.mark.parametrize(("stage", "kind"), [(0, "fp32"), (1, "fp32"), (1, "bf16")])
def test_a_pipeline(ranks: Ranks, run: RunPaths, tmp_path: Path, stage: int, kind: str) -> None:
    loss = _saved(ranks, run, "pipeline", stage=stage, kind=kind)
    record = _exported(ranks, run, tmp_path / "out", None if kind == "fp32" else kind)
    assert record["tensors"] == 5
    assert set(ranks.tell("plain_loss", directory=str(tmp_path / "out"))) == {loss}
    (checkpoint,) = run.checkpoints.glob("step-*")
    weights = saved_weights.collect(checkpoint, [path.name for path in checkpoint.iterdir()])
    assert {str(value.dtype) for value in weights.tensors.values()} == {"torch.float32"}


@pytest.mark.parametrize(("stage", "kind"), [(0, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16")])
def test_a_model_divided_by_autotp(
    ranks: Ranks, run: RunPaths, tmp_path: Path, stage: int, kind: str
) -> None:
    loss = _saved(ranks, run, "tied", stage=stage, kind=kind, tensor=2)
    out = tmp_path / "out"
    _exported(ranks, run, out, None if kind == "fp32" else kind)
    # The plain model adds up in another order.
    (plain,) = set(ranks.tell("plain_loss", directory=str(out)))
    assert float.fromhex(plain) == pytest.approx(
        float.fromhex(loss), rel=1e-6 if kind == "fp32" else 1e-2
    )
    # Divided anew, it adds up in the same.
    assert set(ranks.tell("tied", stage=0, kind=kind, tensor=2, weights=str(out))) == {None}
    assert set(ranks.tell("loss")) == {loss}


def test_what_cannot_be_put_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file of DeepSpeed's with a model's weights"):
        saved_weights.collect(tmp_path, ["rank-00000.pt"])
    with pytest.raises(CheckpointError, match="mixture of experts"):
        saved_weights.collect(tmp_path, ["layer_0_expert_1_mp_rank_00_model_states.pt"])
    with pytest.raises(CheckpointError, match="offload to NVMe"):
        saved_weights.collect(tmp_path, ["offloaded_tensors/rank0/1.tensor.swp"])
    with pytest.raises(CheckpointError, match="stages are divided between tensor"):
        saved_weights.collect(tmp_path, ["layer_00-model_01-model_states.pt"])
    torch.save(["no state"], tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match="cannot be read: it has no state of a model"):
        saved_weights.collect(tmp_path, ["mp_rank_00_model_states.pt"])
