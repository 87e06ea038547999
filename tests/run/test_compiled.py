"""A run whose blocks are compiled: a rank is killed, and the steps after it are the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

PROGRAM = """
import os, signal
import torch
from torch import nn
from torch._dynamo.utils import counters

def train(session):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 4)) for _ in range(2)]
    model = nn.Sequential(nn.Linear(4, 4), *blocks)
    mean = lambda found, wanted: (found - wanted).square().mean()
    engine, *_ = session.initialize(model=model, loss=mean, model_parameters=model.parameters())
    session.restore(engine)

    def read(samples):
        x = torch.tensor(samples).view(-1, 1).repeat(1, 4) % 16 / 16
        return x, x

    for step in session.steps(total=8):
        session.log({"loss": session.train_batch(step, read).item()}, step)
        if step == 7 and session.attempt == 1 and session.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    (session.directory / f"cache-{session.rank}").write_text(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert counters["stats"]["unique_graphs"], "nothing was compiled"
    assert [*os.scandir(os.environ["TORCHINDUCTOR_CACHE_DIR"])]
"""


def test_a_killed_rank_loses_no_bit(place: Place, warm_operators: Path) -> None:
    (place.code / "compiled.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    place.submit(
        Entry("function", module="compiled", function="train", import_root="."),
        ranks=2,
        optimization={"compile": True},
        checkpoint={"every": 4},
        recovery={"in_place": 1},
        deepspeed={
            "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": 1},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        },
    )
    code, said = place.supervise(timeout=200)
    assert code == 0, said + place.output(attempt=2)
    first, second = _losses(place, 1), _losses(place, 2)
    assert sorted(second) == [5, 6, 7, 8]
    # Rank 0's own: a mean of all ranks may lack the killed one's.
    again = first.keys() & second.keys()
    assert 5 in again
    assert {step: first[step] for step in again} == {step: second[step] for step in again}
    # Of the node, for all attempts.
    assert "inductor" in (place.run.directory / "cache-0").read_text()


def _losses(place: Place, attempt: int) -> dict[int, Any]:
    lines = files.read_lines(place.run.attempt(attempt).metrics)
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
