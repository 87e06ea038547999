"""Models that real ranks hold whole: how they agree, and that a restored one goes on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpcrun.errors import UsageError
from hpcrun.run.rank.replica_engine import ReplicaEngine
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
