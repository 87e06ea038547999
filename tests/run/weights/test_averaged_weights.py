"""The average of the weights is torch's, is saved and restored exactly, and leaves no trace."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import CheckpointError, HpcrunError, UsageError
from hpcrun.run.weights import averaged_weights, saved_weights
from hpcrun.run.weights.averaged_weights import STATE, AveragedWeights
from hpcrun.state import ledger
from hpcrun.state.plan import Entry
from hpcrun.state.spec.experiment import Optimization
from tests.support import operators
from tests.support.place import Place

torch = pytest.importorskip("torch")


class Engine:
    """A model with a frozen parameter and a buffer, stepped by hand."""

    fixed_size: str | None = None
    pipeline_parallelism = False

    def __init__(self, stage: int = 0) -> None:
        torch.manual_seed(3)
        self.module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.module[0].bias.requires_grad_(False)
        self._stage = stage

    def zero_optimization_stage(self) -> int:
        return self._stage

    def step(self) -> None:
        with torch.no_grad():
            for one in self.module.parameters():
                if one.requires_grad:
                    one.add_(torch.randn_like(one))


def _trained(steps: int, every: int = 1) -> tuple[Engine, AveragedWeights]:
    engine = Engine()
    average = AveragedWeights(engine, 0.9, every, 0)
    for step in range(1, steps + 1):
        engine.step()
        average.update(step)
    return engine, average


def _own(average: AveragedWeights) -> dict[str, Any]:
    return {name: value.clone() for name, value in average.state_dict()["weights"].items()}


def test_it_is_torchs_average() -> None:
    from torch.optim import swa_utils

    engine = Engine()
    average = AveragedWeights(engine, 0.9, 1, 0)
    theirs = swa_utils.AveragedModel(
        engine.module, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for step in range(1, 6):
        engine.step()
        average.update(step)
        theirs.update_parameters(engine.module)
    expected = dict(theirs.module.named_parameters())
    found = _own(average)
    assert [*found] == ["0.weight", "1.weight", "1.bias"], "what is trained"
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_with_fewer_updates_it_reaches_as_far_back() -> None:
    engine, _ = _trained(2)
    weights = [each.detach().clone() for each in engine.module.parameters() if each.requires_grad]
    engine, average = _trained(4, every=2)
    last = [each.detach() for each in engine.module.parameters() if each.requires_grad]
    for value, first, second in zip(_own(average).values(), weights, last, strict=True):
        assert torch.allclose(value, 0.81 * first + 0.19 * second, atol=1e-6)


def test_the_model_has_it_for_a_while_and_its_own_weights_after() -> None:
    engine, average = _trained(3)
    before = {name: value.clone() for name, value in engine.module.state_dict().items()}
    with contextlib.suppress(ZeroDivisionError), average.in_place():
        now = dict(engine.module.named_parameters())
        assert all(torch.equal(now[name], value) for name, value in average._average.items())
        assert not torch.equal(now["0.weight"], before["0.weight"])
        with pytest.raises(HpcrunError, match=r"inside session\.averaged_weights"):
            average.update(4)
        with pytest.raises(HpcrunError, match="would save the averaged weights"):
            average.state_dict()
        with pytest.raises(HpcrunError, match="in use already"), average.in_place():
            pass
        raise ZeroDivisionError
    after = engine.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_before_the_first_step_it_is_the_model() -> None:
    engine = Engine()
    before = engine.module[0].weight.detach().clone()
    with AveragedWeights(engine, 0.9, 1, 0).in_place():
        assert torch.equal(engine.module[0].weight, before)


@pytest.mark.parametrize("resized", [False, True])
def test_it_goes_on_as_it_was_saved(resized: bool) -> None:
    engine, average = _trained(3)
    state = average.state_dict()
    other = AveragedWeights(engine, 0.9, 1, 0)
    if resized:
        other.load_state_dicts([state, {}])
    else:
        other.load_state_dict(state)
    engine.step()
    for one in (average, other):
        one.update(4)
    found = _own(other)
    assert all(torch.equal(value, found[name]) for name, value in _own(average).items())
    assert AveragedWeights(engine, 0.9, 1, 1).state_dict() == {}, "rank 0 saves it"
    engine.module[0].bias.requires_grad_(True)
    with pytest.raises(HpcrunError, match="a model with other parameters"):
        other.load_state_dict(state)


def test_what_has_no_whole_weights_is_refused() -> None:
    wanted = Optimization(ema=0.9)
    assert averaged_weights.of(Optimization(), Engine(3), 0) is None
    with pytest.raises(UsageError, match="ZeRO 3"):
        averaged_weights.of(wanted, Engine(3), 0)
    engine = Engine()
    engine.pipeline_parallelism = True
    engine.num_stages = 2  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="the model is divided"):
        averaged_weights.of(wanted, engine, 0)
    engine = Engine()
    engine.fixed_size = "each has its own"
    with pytest.raises(UsageError, match="weights of its own"):
        averaged_weights.of(wanted, engine, 0)


def test_it_takes_the_place_of_the_weights_in_an_export(tmp_path: Path) -> None:
    engine, average = _trained(3)
    tensors = dict(engine.module.state_dict())
    tensors["head"] = tensors["0.weight"]
    weights = saved_weights.SavedWeights(tensors, {"head": "0.weight"})
    with pytest.raises(CheckpointError, match="has no averaged weights"):
        saved_weights.put_averaged(weights, tmp_path)
    saved = {"rng": None, "states": {STATE: average.state_dict()}}
    torch.save(saved, tmp_path / "rank-00000.pt")
    saved_weights.put_averaged(weights, tmp_path)
    own = _own(average)
    assert torch.equal(weights.tensors["head"], own["0.weight"])
    assert torch.equal(weights.tensors["1.bias"], own["1.bias"])
    assert torch.equal(weights.tensors["0.bias"], engine.module[0].bias)
    assert weights.notes[0] == "the average of the weights over 3 updates"


PROGRAM = """
import os, signal
import torch
from torch import nn

def train(session):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)
    for step in session.steps(total=8):
        for batch in session.micro_batches(step):
            x = torch.tensor(batch, dtype=torch.float32).view(-1, 1).repeat(1, 4) / 64
            loss = engine(x.to(next(model.parameters()).dtype)).float().square().mean()
            engine.backward(loss)
            engine.step()
        if session.rank == 0 and step == session.config.killed:
            os.kill(os.getpid(), signal.SIGKILL)
    own = [one.detach().clone() for one in model.parameters()]
    with session.averaged_weights():
        found = [one.detach().clone() for one in model.parameters()]
    assert all(torch.equal(one, two) for one, two in zip(own, model.parameters()))
    if session.rank == 0:
        torch.save([found, session._averaged.state_dict()], session.directory / "average.pt")
"""


@pytest.mark.usually
@pytest.mark.training
@pytest.mark.parametrize("stage", [1, 2])
def test_a_kill_and_another_number_of_ranks(stage: int, place: Place, warm_operators: Path) -> None:
    """ZeRO divides the optimizer; the average goes on over a kill and on one rank, as unhurt."""
    (place.code / "averaging.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    entry = Entry("function", module="averaging", function="train", import_root=".")
    found = []
    for ranks, killed in ((2, 0), (2, 5), (1, 0)):
        place.submit(
            entry,
            ranks=ranks,
            config={"seed": 1, "killed": killed},
            optimization={"ema": 0.8},
            checkpoint={"every": 3, "keep": 9},
            deepspeed={
                "train_batch_size": 8,
                "train_micro_batch_size_per_gpu": 8 // ranks,
                "zero_optimization": {"stage": stage},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
            },
        )
        code, said = place.supervise(timeout=400)
        number = max(one.number for one in place.run.attempts())
        assert code == (1 if killed else 0), said + place.output(attempt=number)
        if ranks == 2:
            ledger.set_intent(place.run, None)
        if not killed:
            found.append(torch.load(place.run.directory / "average.pt", weights_only=False))
            if len(found) == 1:
                # The unhurt run is out of the way.
                for path in [*place.run.checkpoints.iterdir()]:
                    path.rename(place.root / path.name)
                place.run.ledger.unlink()
                for each in place.run.attempts():
                    each.directory.rename(place.root / f"attempt-{each.number}")
    (unhurt, first), (hurt, second) = found
    assert first["steps"] == second["steps"] == 8
    for one, two in zip(unhurt, hurt, strict=True):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-7)
    assert json.dumps([*first["weights"]]) == json.dumps([*second["weights"]])
