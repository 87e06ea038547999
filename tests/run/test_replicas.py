"""A run whose ranks come to hold other weights goes on from the save at which they agreed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

PROGRAM = """
import torch
from torch import nn

def train(session):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    for step in session.steps(total=8):
        if session.attempt == 1 and session.rank == 1 and step == 6:
            model.weight.data.view(torch.int32).view(-1)[5] ^= 1 << 3
        for indices in session.micro_batches(step):
            x = torch.stack([torch.full((4,), index / 10) for index in indices])
            loss = (engine(x) - x).square().mean()
            engine.backward(loss)
            engine.step()
        session.log({"loss": loss}, step)
"""
DEEPSPEED = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}


def test_one_bit_is_found_and_the_run_goes_on_from_its_last_save(
    place: Place, warm_operators: Path
) -> None:
    library = place.code / "lib"
    library.mkdir()
    (library / "mine.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    entry = Entry("function", module="mine", function="train", import_root="lib")
    place.submit(
        entry,
        ranks=2,
        deepspeed=DEEPSPEED,
        checkpoint={"every": 3},
        recovery={"check_replicas": 2, "in_place": 1},
    )
    code, _ = place.supervise(timeout=110.0)
    assert code == 0, place.output(attempt=2)
    cause = place.cause()
    assert cause["kind"] == "replicas_differ"
    assert cause["message"].startswith("step 6: the weights of ranks that should hold the same")
    assert "rank 0 (local0), rank 1 (local0); at step 5 they agreed" in cause["message"]
    # Nothing was saved at step 6, when it was due.
    events = [json.loads(line) for line in place.run.attempt(2).session.open()]
    (restored,) = [each for each in events if each["event"] == "restored"]
    assert restored["step"] == 3
