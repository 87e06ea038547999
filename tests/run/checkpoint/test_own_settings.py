"""The optimizer's settings of a run that goes on from another's checkpoint are its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint.own_settings import OwnSettings
from hpcrun.state.layout import RunPaths
from tests.run.ranks import THREE, Worlds

pytestmark = [pytest.mark.training]


class Bent:
    """A rate by step that has a value of its own."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, step: int) -> float:
        return 1 / (1 + self.slope * step)


def _lambda(function: Callable[[float], Callable[[int], float]], optimizer: Any, lr: float) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, function(lr))


def _deepspeed(name: str, optimizer: Any, lr: float, **options: Any) -> Any:
    from deepspeed.runtime import lr_schedules

    options |= {"warmup_max_lr": lr} if name != "WarmupCosineLR" else {}
    return getattr(lr_schedules, name)(optimizer, warmup_num_steps=4, **options)


SCHEDULES: dict[str, Callable[[Any, float], Any]] = {
    "none": lambda optimizer, lr: None,
    "lambda": functools.partial(_lambda, lambda lr: lambda step: 0.5**step),
    "lambda with a value": functools.partial(_lambda, Bent),
    "WarmupLR": functools.partial(_deepspeed, "WarmupLR"),
    "WarmupDecayLR": functools.partial(_deepspeed, "WarmupDecayLR", total_num_steps=20),
    "WarmupCosineLR": functools.partial(_deepspeed, "WarmupCosineLR", total_num_steps=20),
}


class Engine:
    """What a restore loads of an engine: DeepSpeed's do it so with theirs."""

    def __init__(self, schedule: Any, lr: float, decay: float) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=lr, weight_decay=decay, betas=(0.9, 1 - lr)
        )
        self.lr_scheduler = schedule(self.optimizer, lr)

    def train(self, steps: int) -> list[float]:
        """Train; return the rate of each step."""
        rates = []
        for _ in range(steps):
            self.model(torch.ones(2, 4)).sum().backward()
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.step()
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()
        return rates

    def load(self, other: Engine) -> None:
        self.model.load_state_dict(other.model.state_dict())
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(copy.deepcopy(other.lr_scheduler.state_dict()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_a_run_that_had_its_values_from_the_start(name: str) -> None:
    schedule = SCHEDULES[name]
    parent, expected = Engine(schedule, 0.1, 0.01), Engine(schedule, 0.03, 0.2)
    parent.train(6)
    rates = expected.train(12)[6:]
    engine = Engine(schedule, 0.03, 0.2)
    own = OwnSettings(engine, {})
    engine.load(parent)
    own.put_back()
    (group,) = engine.optimizer.param_groups
    assert (group["weight_decay"], group["betas"]) == (0.2, (0.9, 0.97))
    # Its state is the parent's.
    states = [each["step"] for each in engine.optimizer.state.values()]
    assert [float(step) for step in states] == [6.0, 6.0]
    assert engine.train(6) == pytest.approx(rates)


def test_a_schedule_that_the_engine_does_not_know() -> None:
    """It is one of the states of `restore`, whose loop steps it."""
    schedule = SCHEDULES["lambda"]
    parent, engine = Engine(schedule, 0.1, 0.0), Engine(schedule, 0.03, 0.0)
    parent.train(6)
    states = {"schedule": engine.lr_scheduler, "counter": SimpleNamespace(state_dict=dict)}
    hidden = SimpleNamespace(optimizer=engine.optimizer)
    own = OwnSettings(hidden, states)
    engine.load(parent)
    own.put_back()
    assert engine.train(1) == pytest.approx([0.03 * 0.5**6])


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer, lr: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=lr),
        lambda optimizer, lr: torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, 20),
    ],
)
def test_a_schedule_that_would_have_the_others_rates_is_refused(schedule: Any) -> None:
    parent, engine = Engine(schedule, 0.1, 0.0), Engine(schedule, 0.03, 0.0)
    own = OwnSettings(engine, {})
    parent.train(2)
    engine.load(parent)
    with pytest.raises(CheckpointError, match="cannot go on from another run's checkpoint") as told:
        own.put_back()
    assert "LambdaLR" in (told.value.hint or "")


def test_a_rate_that_is_a_tensor_stays_the_same_one() -> None:
    """A compiled step reads it."""
    rate = torch.tensor(0.1)
    engine = SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": rate}]))
    own = OwnSettings(engine, {})
    rate.fill_(0.7)
    own.put_back()
    assert engine.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_of_an_engine_of_deepspeeds(worlds: Worlds, tmp_path: Any, stage: int) -> None:
    """What ZeRO restores of groups is put back on each rank."""
    ranks, run = worlds(2), str(RunPaths(tmp_path / "3").directory)
    assert set(ranks.tell("engine", stage=stage)) == {None}
    ranks.tell("train", steps=3)
    before = ranks.tell("settings")
    ranks.tell("save", run=run, step=3)
    assert set(ranks.tell("engine", stage=stage, seed=5, lr=0.03)) == {None}
    assert ranks.tell("restore", run=run) == [[3, THREE]] * 2
    assert ranks.tell("settings") == before
    assert set(ranks.tell("engine", stage=stage, seed=5, lr=0.03)) == {None}
    assert ranks.tell("restore", run=run, inherits=True) == [[3, THREE]] * 2
    for own, theirs in zip(ranks.tell("settings"), before, strict=True):
        assert (theirs["weight_decay"], own["weight_decay"]) == ([0.01], [0.03])
        assert own["lr"] == pytest.approx([3 * theirs["lr"][0]])
