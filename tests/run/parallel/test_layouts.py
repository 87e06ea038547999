"""Real ranks that train a divided model, and go on at another layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

PROGRAM = """
import copy, json, pathlib
import torch
from torch import nn
from torch.nn import functional
import hpcrun

def attend(query, key, value):
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return found.transpose(1, 2).contiguous()

class Block(nn.Module):
    tensor_parallel_plan = {
        "query": "colwise", "key": "colwise", "value": "colwise", "out": "rowwise",
        "expand": "colwise", "contract": "rowwise",
    }

    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        normed = self.norm(x)
        heads = (
            layer(normed).view(batch, length, -1, self.size)
            for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(hpcrun.ulysses_attention(attend, *heads).reshape(batch, length, -1))
        return x + self.contract(functional.gelu(self.expand(x)))

class Unembed(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return functional.linear(x, self.embedding.weight)

def loss(outputs, labels):
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())

def text(indices):
    rows = []
    for index in indices:
        start = torch.randint(0, 16, (1,), generator=torch.Generator().manual_seed(index))
        rows.append((start + torch.arange(9) * 3) % 16)
    return torch.stack(rows)

def alone(model, steps, size):
    model, losses = copy.deepcopy(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        rows = text(range(step * size, (step + 1) * size))
        found = loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(found.item())
    return losses

def train(session):
    torch.manual_seed(0)
    embedding = nn.Embedding(16, 8)
    blocks = [Block(8, 4) for _ in range(2)]
    model = nn.Sequential(embedding, *blocks, nn.LayerNorm(8), Unembed(embedding))
    expected = alone(model, 6, 8)
    engine, *_ = session.initialize(
        model=model, loss=loss, model_parameters=list(model.parameters())
    )
    session.restore(engine)

    def read(indices):
        rows = text(indices)
        return session.sequence_part(rows[:, :-1], rows[:, 1:])

    for step in session.steps(total=6):
        if step > session.config.steps:
            break
        session.log({"loss": session.train_batch(step, read)}, step)
    mine = {"alone": expected, "parameters": sum(
        each.numel() for each in engine.module.parameters()
    )}
    held = session.eval_batch([read([900, 901])])
    mine["held"] = held.item()
    out = pathlib.Path(session.config.out, f"{session.config.steps}-{session.rank}.json")
    out.write_text(json.dumps(mine))
    if session.config.steps < 6:
        raise SystemExit("as asked")
"""
DEEPSPEED = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 1},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 0.01, "weight_decay": 0.01, "torch_adam": True},
    },
}
BOTH = {"tensor": 2, "pipeline": 2}


@pytest.fixture
def divided(place: Place, warm_operators: Path) -> Place:
    library = place.code / "lib"
    library.mkdir()
    (library / "mine.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    return place


def _train(place: Place, parallel: dict[str, int], steps: int) -> dict[str, Any]:
    """Train on four ranks; what rank 0 wrote, and the losses that were logged."""
    entry = Entry("function", module="mine", function="train", import_root="lib")
    ranks = 4
    for size in parallel.values():
        ranks //= size
    config = {**DEEPSPEED, "gradient_accumulation_steps": 8 // ranks}
    place.submit(
        entry,
        nodes=2,
        ranks=2,
        config={"out": str(place.root), "steps": steps},
        deepspeed=config,
        parallel=parallel,
        checkpoint={"every": 3},
        recovery={"requeue": False, "max_failures": 1, "in_place": 0},
    )
    attempt = len(list((place.run.directory / "attempts").glob("*"))) + 1
    code, _ = place.supervise(timeout=110.0)
    assert code == (0 if steps == 6 else 1), place.output(attempt=attempt)
    found: dict[str, Any] = json.loads((place.root / f"{steps}-0.json").read_text())
    lines = [json.loads(line) for line in place.run.attempt(attempt).metrics.open()]
    return {**found, "losses": [line["loss"] for line in lines if "loss" in line]}


def test_a_divided_run_goes_on_at_another_layout(divided: Place) -> None:
    first = _train(divided, BOTH, 3)
    assert first["losses"] == pytest.approx(first["alone"][:3], rel=1e-4)
    second = _train(divided, {}, 6)
    assert second["losses"] == pytest.approx(second["alone"][3:], rel=1e-4)
    assert first["parameters"] < second["parameters"] / 2, "a rank held a quarter of the blocks"
    (saved,) = divided.run.checkpoints.glob("step-00000003*/manifest.json")
    assert json.loads(saved.read_text())["parallel"] == BOTH
