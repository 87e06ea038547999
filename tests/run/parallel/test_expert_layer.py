"""Mixture-of-experts layers whose experts are divided between ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.parallel import expert_layer
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

PROGRAM = """
import torch
from torch import nn
from torch.nn import functional
import hpcrun

def expert():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.moe = hpcrun.expert_layer(8, expert, 4, drop_tokens=False, use_rts=False)
        self.out = nn.Linear(8, 16)

    def forward(self, tokens, labels):
        found, auxiliary, _ = self.moe(self.embed(tokens))
        loss = functional.cross_entropy(self.out(found).flatten(0, 1), labels.flatten())
        return loss + 0.01 * auxiliary

def text(indices):
    rows = []
    for index in indices:
        start = torch.randint(0, 16, (1,), generator=torch.Generator().manual_seed(index))
        rows.append((start + torch.arange(9) * 3) % 16)
    return torch.stack(rows)

def train(session):
    torch.manual_seed(0)
    model = Model()
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)

    def read(indices):
        rows = text(indices)
        return rows[:, :-1], rows[:, 1:]

    for step in session.steps(total=6):
        if step > session.config.steps:
            raise SystemExit("as asked")
        session.log({"loss": session.train_batch(step, read)}, step)
"""
DEEPSPEED = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.5,
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 0.01, "weight_decay": 0.01, "torch_adam": True},
    },
}


def _expert() -> Any:
    return torch.nn.Linear(4, 4)


def _layer(monkeypatch: pytest.MonkeyPatch, size: int, rank: int, **options: Any) -> Any:
    monkeypatch.setattr(expert_layer, "_size", lambda: size)
    monkeypatch.setenv("RANK", str(rank))
    torch.manual_seed(3)
    return expert_layer.expert_layer(4, _expert, 4, **options)


def _weights(layer: Any) -> list[Any]:
    return [one.weight for one in layer.deepspeed_moe.experts.deepspeed_experts]


def test_experts_begin_with_the_same_weights_however_they_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = _weights(_layer(monkeypatch, 1, 0))
    halves = [*_weights(_layer(monkeypatch, 2, 2)), *_weights(_layer(monkeypatch, 2, 3))]
    assert len(whole) == 4
    assert not torch.equal(whole[0], whole[1])
    assert all(map(torch.equal, whole, halves))


def test_what_cannot_be_divided_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"parallel\.expert is 3, which does not divide 4"):
        _layer(monkeypatch, 3, 0)
    with pytest.raises(UsageError, match=r"takes no ep_size\n\nhint: set parallel\.expert"):
        _layer(monkeypatch, 2, 0, ep_size=2)
    layer = _layer(monkeypatch, 2, 0)
    with pytest.raises(UsageError, match=r"ep_size 2, and parallel\.expert is 4"):
        expert_layer.check(torch.nn.Sequential(layer), 4)
    with pytest.raises(UsageError, match="no mixture-of-experts layer"):
        expert_layer.check(torch.nn.Linear(2, 2), 2)
    expert_layer.check(torch.nn.Linear(2, 2), 1)


def test_parameters_of_experts_are_apart_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), _layer(monkeypatch, 2, 0))
    plain = {"model_parameters": [{"params": list(torch.nn.Linear(2, 2).parameters()), "lr": 1.0}]}
    assert expert_layer.with_groups(torch.nn.Linear(2, 2), plain) is plain
    whole = expert_layer.with_groups(model, {"model_parameters": list(model.parameters())})
    found = whole["model_parameters"]
    apart = [group for group in found if group.get("moe")]
    assert sum(len(group["params"]) for group in apart) == 4
    assert sum(len(group["params"]) for group in found) == len(list(model.parameters()))
    given = [{"params": list(model.parameters()), "lr": 0.5, "weight_decay": 0.0}]
    found = expert_layer.with_groups(model, {"model_parameters": given})["model_parameters"]
    assert {(group["lr"], group["weight_decay"]) for group in found} == {(0.5, 0.0)}


def _train(place: Place, parallel: dict[str, int], stage: int, steps: int = 6) -> list[float]:
    place.submit(
        Entry("function", module="mine", function="train", import_root="lib"),
        ranks=2,
        config={"steps": steps},
        deepspeed={**DEEPSPEED, "zero_optimization": {"stage": stage}},
        parallel=parallel,
        checkpoint={"every": 3},
        recovery={"requeue": False, "max_failures": 1, "in_place": 0},
    )
    attempt = len(list((place.run.directory / "attempts").glob("*"))) + 1
    code, _ = place.supervise(timeout=200.0)
    assert code == (0 if steps == 6 else 1), place.output(attempt=attempt)
    lines = [json.loads(line) for line in place.run.attempt(attempt).metrics.open()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.usually
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", [1, 2])
def test_divided_experts_train_as_whole_ones_and_go_on_to_the_bit(
    stage: int, tmp_path: Path, warm_operators: Path
) -> None:
    losses = []
    for number, (parallel, parts) in enumerate(
        (({}, [6]), ({"expert": 2}, [6]), ({"expert": 2}, [3, 6]))
    ):
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        try:
            (place.code / "lib").mkdir()
            (place.code / "lib" / "mine.py").write_text(PROGRAM)
            operators.link(warm_operators, place.root)
            losses.append([one for steps in parts for one in _train(place, parallel, stage, steps)])
            saved = [*place.run.checkpoints.glob("step-*/manifest.json")]
            assert all(json.loads(one.read_text())["parallel"] == parallel for one in saved)
        finally:
            place.close()
    whole, divided, resumed = losses
    assert len(whole) == 6
    assert divided == pytest.approx(whole, rel=1e-4)
    assert resumed == divided
