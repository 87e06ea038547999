"""Models that real ranks hold whole: how they agree, and that a restored one goes on exactly."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from hpcrun.errors import UsageError
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank.replica_engine import ReplicaEngine, options_of
from hpcrun.run.weights import saved_weights
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from tests.run.ranks import THREE, Worlds

VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fp16": {"hook": "fp16"},
    "average": {"every": 2, "outer": "average"},
    "diloco": {"every": 2, "outer": "diloco"},
}


@pytest.mark.training
@pytest.mark.parametrize("name", VARIANTS)
def test_a_restored_run_goes_on_to_the_bit(worlds: Worlds, tmp_path: Path, name: str) -> None:
    ranks, run, options = worlds(2), RunPaths(tmp_path / "3"), VARIANTS[name]
    assert ranks.tell("replicas", **options) == [None, None]
    ranks.tell("train_mixed", steps=2)
    agreed = ranks.tell("replica")
    ranks.tell("train_mixed", steps=1)
    apart = ranks.tell("replica")
    assert (apart[0] == apart[1]) == ("every" not in options)
    # Adam's moments stay each rank's own.
    assert (agreed[0] == agreed[1]) == ("every" not in options)
    assert isinstance(ranks.tell("save", run=str(run.directory), step=3)[0], dict)
    (found,) = [one for _, one in manifest.complete(run.checkpoints)]
    assert ("replica-00001.pt" in found.files) == ("every" in options)
    assert (found.fixed_size is None) == ("every" not in options)
    losses = ranks.tell("train_mixed", steps=3)
    run.attempt(2).directory.mkdir(parents=True)
    assert ranks.tell("replicas", seed=5, **options) == [None, None]
    assert ranks.tell("restore", run=str(run.directory)) == [[3, THREE]] * 2
    assert ranks.tell("replica") == apart
    assert ranks.tell("train_mixed", steps=3) == losses


@pytest.mark.training
def test_gradients_are_reduced_once_a_step(worlds: Worlds) -> None:
    ranks = worlds(2)
    ranks.tell("replicas", accumulation=4, counted=True)
    ranks.tell("train_mixed", steps=8)
    assert ranks.tell("reductions") == [2, 2], "eight micro batches are two steps"
    first, second = ranks.tell("replica")
    assert first == second


@pytest.mark.training
def test_parameters_that_have_no_part_in_the_loss(worlds: Worlds) -> None:
    """DDP leaves gradients unreduced that it sends together with theirs."""
    ranks = worlds(2)
    ranks.tell("replicas", kind="unused")
    for said in ranks.tell("train_mixed", steps=1):
        assert "1.never.weight, 1.never.bias had no part in the loss" in said
    ranks.tell("replicas", kind="unused", find_unused_parameters=True)
    ranks.tell("train_mixed", steps=2)
    first, second = ranks.tell("replica")
    assert first == second


@pytest.mark.training
def test_weights_of_several_types_keep_them(worlds: Worlds) -> None:
    ranks = worlds(2)
    ranks.tell("replicas", kind="half", every=2)
    types = ranks.tell("types")
    ranks.tell("train_mixed", steps=2)
    assert ranks.tell("types") == types
    assert len(set(types[0])) == 2


class Tabled(torch.optim.lr_scheduler.LRScheduler):
    """A schedule of a program's own, with numbers of NumPy."""

    def __init__(self, optimizer: Any) -> None:
        self.table = numpy.linspace(1, 0, 9)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [rate * float(self.table[self.last_epoch]) for rate in self.base_lrs]


def test_a_schedule_that_keeps_what_it_likes_goes_on(tmp_path: Path) -> None:
    def made() -> ReplicaEngine:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return ReplicaEngine(model, optimizer, lr_scheduler=Tabled)

    engine = made()
    engine.backward(engine(torch.ones(3)).sum())
    engine.step()
    (tmp_path / "1").mkdir()
    engine.save_checkpoint(str(tmp_path), "1", {}, save_latest=False)
    restored = made()
    restored.load_checkpoint(str(tmp_path), "1")
    assert restored.lr_scheduler.get_last_lr() == [0.875]


def test_its_weights_are_exported(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)
    )
    model[2].weight = model[0].weight
    (tmp_path / "1").mkdir()
    engine = ReplicaEngine(model, torch.optim.SGD(model.parameters(), lr=1.0))
    engine.save_checkpoint(str(tmp_path), "1", {}, save_latest=False)
    found = saved_weights.collect(tmp_path / "1", ["replica-00000.pt"])
    assert found.tied == {"2.weight": "0.weight"}
    assert found.buffers == {name for name, _ in model.named_buffers()}
    state = model.state_dict()
    assert found.tensors.keys() == state.keys()
    assert all(torch.equal(one.contiguous(), state[n]) for n, one in found.tensors.items())
    shutil.copy(tmp_path / "1/replica-00000.pt", tmp_path / "1/replica-00001.pt")
    found = saved_weights.collect(tmp_path / "1", ["replica-00001.pt", "replica-00000.pt"])
    assert "each rank has its own" in found.notes[0]


def test_gradients_are_cut_and_the_schedule_goes_on(tmp_path: Path) -> None:
    def made(seed: int) -> ReplicaEngine:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
        return ReplicaEngine(model, optimizer, gradient_clipping=0.25, lr_scheduler=schedule)

    engine = made(0)
    rates = []
    for _ in range(3):
        before = torch.nn.utils.parameters_to_vector(engine.module.parameters()).detach().clone()
        (rate,) = engine.lr_scheduler.get_last_lr()
        engine.backward(100 * engine(torch.ones(3)).sum())
        engine.step()
        after = torch.nn.utils.parameters_to_vector(engine.module.parameters())
        assert (after - before).norm().item() == pytest.approx(0.25 * rate, rel=1e-4)
        rates.append(rate)
    assert rates == [1.0, 1.0, 0.5]
    (tmp_path / "3").mkdir()
    engine.save_checkpoint(str(tmp_path), "3", {}, save_latest=False)
    restored = made(1)
    restored.load_checkpoint(str(tmp_path), "3")
    assert restored.lr_scheduler.state_dict() == engine.lr_scheduler.state_dict()
    assert restored.optimizer.param_groups[0]["lr"] == 0.5


BATCH = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
}


def test_batch_clipping_and_schedule_come_from_the_spec() -> None:
    config = {**BATCH, "gradient_clipping": 0.5, "zero_optimization": {"stage": 0}}
    found = options_of(config, RankLayout({}, 2))
    assert found == {"accumulation": 2, "train_batch": 8, "gradient_clipping": 0.5}
    assert options_of({}, RankLayout({}, 2)) == {}


@pytest.mark.parametrize(
    ("config", "parallel", "named"),
    [
        ({"bf16": {"enabled": True}}, {}, "deepspeed.bf16.enabled"),
        ({"torch_autocast": {"enabled": True}}, {}, "deepspeed.torch_autocast"),
        ({"zero_optimization": {"stage": 2}}, {}, "deepspeed.zero_optimization.stage"),
        ({"scheduler": {"type": "WarmupLR"}}, {}, "deepspeed.scheduler"),
        ({}, {"tensor": 2}, "parallel"),
        ({}, {"expert": 2}, "parallel"),
    ],
)
def test_what_it_does_not_do_is_refused(
    config: dict[str, Any], parallel: dict[str, int], named: str
) -> None:
    with pytest.raises(UsageError, match=f"the spec has {named}, which it does not know"):
        options_of({**BATCH, **config}, RankLayout(parallel, 2))


@pytest.mark.training
def test_powersgd_trains(worlds: Worlds) -> None:
    ranks = worlds(2)
    assert ranks.tell("replicas", hook="powersgd") == [None, None]
    losses = ranks.tell("train_mixed", steps=60)[0]
    assert sum(losses[-10:]) < sum(losses[:10])
    first, second = ranks.tell("replica")
    assert first == second


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"every": 0}, "every is 0"),
        ({"outer": "mean"}, "outer is 'mean'"),
        ({"hook": "bf16"}, "hook is 'bf16'"),
        ({"every": 8, "hook": "fp16"}, "ranks exchange none"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], found: str) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match=found):
        ReplicaEngine(model, torch.optim.SGD(model.parameters()), **options)


def test_micro_batches_are_the_whole_batch_on_one_rank() -> None:
    weights = []
    for accumulation in (1, 4):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = ReplicaEngine(model, optimizer, accumulation=accumulation)
        x = torch.randn(8, 3)
        for part in x.chunk(accumulation):
            engine.backward(engine(part).square().mean())
            engine.step()
        assert engine.global_steps == 1
        weights.append(model.weight.detach().clone())
    assert torch.allclose(weights[0], weights[1], atol=1e-6)


def test_a_program_finds_the_device_where_deepspeed_s_engines_have_it() -> None:
    model = torch.nn.Linear(2, 1, device="meta")
    assert ReplicaEngine(model, torch.optim.SGD(model.parameters())).device == model.weight.device
