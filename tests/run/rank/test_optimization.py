"""Schedules, parameter groups and optimizers as the ranks make them, with DeepSpeed's engines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.rank.optimization import fill, parameter_groups, rate
from hpcrun.state.spec.experiment import Optimization
from tests.support import operators
from tests.support.nursery import nursery

nn: Any = pytest.importorskip("torch.nn")

RATE = {"optimizer": {"params": {"lr": 1.0}}}
DECAYING = Optimization(layer_decay=0.5)


def test_a_warm_up_and_what_follows() -> None:
    line = Optimization(warmup=2, decay="linear", total_steps=6, end=0.5)
    assert [rate(line, n) for n in range(8)] == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    cosine = Optimization(warmup=0.5, decay="cosine", total_steps=4)
    assert [round(rate(cosine, n), 6) for n in range(5)] == [0.5, 1.0, 1.0, 0.5, 0.0]
    step = Optimization(decay="step", milestones=[0.5, 3], total_steps=4)
    assert [round(rate(step, n), 6) for n in range(5)] == [1.0, 1.0, 0.1, 0.01, 0.01]
    assert rate(Optimization(warmup=4), 9) == 1.0


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(4, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.norm = nn.LayerNorm(2)


def test_layers_and_matrices_have_groups_of_their_own() -> None:
    model = Model()
    wanted = Optimization(layer_decay=0.5, weight_decay_on="matrices")
    groups = parameter_groups(model, wanted, RATE)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        ([names[id(each)] for each in group["params"]], group["lr"], group.get("weight_decay"))
        for group in groups
    ]
    assert found == [
        (["tokens.weight"], 0.125, None),
        (["blocks.0.weight"], 0.25, None),
        (["blocks.0.bias"], 0.25, 0.0),
        (["blocks.1.weight"], 0.5, None),
        (["blocks.1.bias"], 0.5, 0.0),
        (["norm.weight", "norm.bias"], 1.0, 0.0),
    ]
    parameters = {id(parameter) for parameter in model.parameters()}
    assert {id(each) for group in groups for each in group["params"]} == parameters


def test_several_lists_of_layers_are_not_guessed() -> None:
    model = nn.ModuleDict({"a": Model(), "b": Model()})
    with pytest.raises(UsageError, match=r"several lists of layers \(a.blocks, b.blocks\)"):
        parameter_groups(model, DECAYING, RATE)
    assert len(parameter_groups(model, DECAYING, RATE, "b.blocks")) == 4
    with pytest.raises(UsageError, match="no list of layers"):
        parameter_groups(nn.Linear(2, 2), DECAYING, RATE)


def test_two_schedules_or_an_optimizer_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="an lr_scheduler, too"):
        fill(Model(), {"config": {}, "lr_scheduler": object()}, Optimization(warmup=3))
    config = {"optimizer": {"type": "no_such_library.Lion"}}
    with pytest.raises(UsageError, match=r"no_such_library.Lion cannot be imported"):
        fill(Model(), {"config": config}, Optimization())


PROGRAM = """
import json, logging, os, sys, torch
from torch import nn
import deepspeed
from hpcrun.run.rank import optimization
from hpcrun.state.spec.experiment import Optimization

torch.set_num_threads(1)
logging.disable(logging.WARNING)
deepspeed.init_distributed("gloo")
rank, out = int(os.environ["RANK"]), sys.argv[1]
CASES = json.loads(sys.argv[2])
WANTED = Optimization(warmup=2, decay="cosine", total_steps=5, layer_decay=0.5,
                      weight_decay_on="matrices")

def engine_of(case):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    config = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
              "gradient_accumulation_steps": 1, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": case["stage"]}, "optimizer": case["optimizer"]}
    arguments = optimization.fill(model, {"config": config}, WANTED)
    return deepspeed.initialize(model=model, **arguments)[0]

def train(engine, steps):
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(2 * step + rank)
        loss = (engine(torch.randn(2, 8, generator=generator)) - 1).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        weights = torch.cat([p.detach().flatten() for p in engine.module.parameters()]).tolist()
    return losses, weights, rates

found = []
for number, case in enumerate(CASES):
    engine = engine_of(case)
    first, _, rates = train(engine, range(3))
    engine.save_checkpoint(f"{out}/{number}", tag="t")
    whole = train(engine, range(3, 5))
    again = engine_of(case)
    again.load_checkpoint(f"{out}/{number}", tag="t")
    resumed = train(again, range(3, 5))
    found.append({"first": first, "rates": rates, "whole": whole, "resumed": resumed})
if rank == 0:
    open(f"{out}/found.json", "w").write(json.dumps(found))
"""
ADAM = {"lr": 1e-2, "torch_adam": True}
CASES: list[dict[str, Any]] = [
    {"stage": 1, "optimizer": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}}},
    {"stage": 3, "optimizer": {"type": "AdamW", "params": ADAM}},
    {"stage": 2, "optimizer": {"type": "torch.optim.NAdam", "params": {"lr": 1e-2}}},
    {"stage": 0, "optimizer": {"type": "Adafactor", "params": {"lr": 1e-2}}},
]


@pytest.mark.training
def test_each_optimizer_trains_and_goes_on_to_the_bit(tmp_path: Path, warm_operators: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    said = tmp_path / "said"
    with open(said, "w") as output:
        ranks = [
            nursery().start(
                ["-c", PROGRAM, str(tmp_path), json.dumps(CASES)],
                output=output.fileno(),
                env={"PATH": operators.PATH, "RANK": str(rank), "LOCAL_RANK": str(rank),
                 "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port, "DS_ACCELERATOR": "cpu",
                 "TORCH_EXTENSIONS_DIR": str(warm_operators / operators.key()),
                 "HOME": str(tmp_path)},
            )
            for rank in range(2)
        ]  # fmt: skip
    try:
        ended = [rank.wait(300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ended == [0, 0], said.read_text()[-4000:]
    for case, found in zip(CASES, json.loads((tmp_path / "found.json").read_text()), strict=True):
        assert found["resumed"] == found["whole"], case
        assert found["first"][0] > found["whole"][0][-1] * 0.2, case
        # After 3 of 5 steps, the warm-up of 2 among them, a cosine has 0.75 left of each rate.
        assert sorted(set(found["rates"])) == pytest.approx([0.75 * 5e-3, 0.75 * 1e-2]), case
