"""Engines without DeepSpeed: what they refuse, and which gradients count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hpcrun.errors import UsageError
from hpcrun.run.rank.torch_engine import TorchEngine, check_model, unmet

SGD = partial(torch.optim.SGD, lr=1.0)


def _engine(**options: Any) -> TorchEngine:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return TorchEngine(model, SGD(model.parameters()), **options)


def test_a_step_needs_a_backward_pass_of_the_engine_s() -> None:
    """The program's own would add micro batches up, where the engine takes their mean."""
    engine = _engine(accumulation=2)
    with pytest.raises(UsageError, match=r"without engine\.backward"):
        engine.step()
    engine(torch.ones(3)).sum().backward()
    with pytest.raises(UsageError, match=r"without engine\.backward") as error:
        engine.step()
    assert "in place of loss.backward()" in str(error.value.hint)
    for _ in range(2):
        engine.backward(engine(torch.ones(3)).sum())
        engine.step()
    assert engine.global_steps == 1


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda x: x, r"a Tensor of shape \[2, 1\]"),
        (lambda x: x.mean().detach(), r"a Tensor of shape \[\];"),
        (lambda x: x.mean().item(), "a float"),
        (lambda x: {"loss": x.mean()}, "a dict"),
        (lambda _: None, "a NoneType"),
    ],
)
def test_what_is_no_loss(loss: Callable[[Any], Any], found: str) -> None:
    engine = _engine()
    with pytest.raises(UsageError, match=rf"found {found}.*accepted is a loss of one"):
        engine.backward(loss(engine(torch.ones(2, 3))))


def test_parameters_that_the_optimizer_leaves_out_count_for_nothing() -> None:
    """Their gradients would add up from step to step, and cut those of the others to nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    engine = TorchEngine(model, SGD(model[1].parameters(), lr=0.0), gradient_clipping=1e-3)
    norms = []
    for _ in range(3):
        engine.backward(engine(torch.ones(3)).sum())
        engine.step()
        norms.append(engine.get_global_grad_norm().item())
    assert norms == [norms[0]] * 3
    hidden = model[0](torch.ones(3)).square().sum()
    assert norms[0] == pytest.approx((hidden + 1).sqrt().item())


def test_an_optimizer_or_a_schedule_of_something_else() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = SGD([*model.parameters(), *other.parameters()])
    with pytest.raises(UsageError, match="2 of the optimizer's parameters are not the model's"):
        TorchEngine(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(UsageError, match="lr_scheduler is of another optimizer") as error:
        TorchEngine(model, SGD(model.parameters()), lr_scheduler=schedule)
    assert "lambda optimizer: StepLR(optimizer, …)" in str(error.value.hint)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))), "wraps the model already"),
        (lambda: torch.compile(nn.Linear(2, 2)), "the program compiles the model"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the device meta"),
    ],
)
def test_models_that_something_else_has_in_hand(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"session.replicas: .*{said}") as error:
        check_model(make(), "session.replicas", {})
    assert error.value.hint


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"train_batch_size": 8, "zero_optimization": {"stage": 0, "overlap_comm": True}}, []),
        ({"fp16": {"enabled": False}, "zero_optimization": {}, "prescale_gradients": False}, []),
        ({"zero_optimization": {"stage": 1, "offload_param": {"device": "none"}}}, ["stage"]),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, ["offload_optimizer"]),
        ({"bf16": {"enabled": True}, "amp": {"enabled": True}}, ["bf16.enabled", "amp"]),
    ],
)
def test_keys_that_would_do_nothing(config: Mapping[str, Any], found: list[str]) -> None:
    told = [*unmet(config)]
    assert len(told) == len(found)
    assert all(part in one for one, part in zip(told, found, strict=True))
