"""Counted operations agree with the formula of the language model that ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from hpcrun.run.profile import op_counts
from hpcrun.run.profile.op_counts import OperationCounter

ROOT = Path(__file__).parents[3]


def _language_model(**shape: int) -> Any:
    spec = importlib.util.spec_from_file_location("profiled", ROOT / "jobs/language_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LanguageModel(**shape)


def test_flops_are_six_a_weight_and_token_and_those_of_attention() -> None:
    layers, width, context, batch = 2, 64, 32, 3
    model = _language_model(layers=layers, width=width, heads=4, context=context)
    text = torch.zeros((batch, context + 1), dtype=torch.int64)
    counter = OperationCounter()
    counter.start()
    model(text).backward()
    counter.stop()
    tokens = batch * context
    matrices = [one.weight for one in model.modules() if isinstance(one, torch.nn.Linear)]
    weights = sum(one.numel() for one in matrices)
    # Scores and values, 2·context·width each; the backward pass makes five such products, of
    # which the first is the forward's again, where two of a product's own would be four.
    attention = (2 + 5) * 2 * context * width * layers
    assert counter.flops == tokens * (6 * weights + attention)
    # The usual 12·layers·width·context differs by that product alone.
    usual = tokens * (6 * weights + 12 * layers * width * context)
    assert abs(counter.flops / usual - 1) < 0.05


def test_what_forward_and_backward_hold_is_told_apart() -> None:
    weight = torch.zeros(1000, 1000, requires_grad=True)
    counter = OperationCounter()
    counter.start()
    made = weight.t() * 2
    loss = (made * made).sum()
    loss.backward()
    counter.stop()
    assert weight.grad is not None
    whole = weight.nbytes
    activations, passing = counter.most_held([weight.grad.untyped_storage()])
    # `made` and its square.
    assert 2 * whole <= activations < 2.1 * whole
    # The gradients of the two on the way.
    assert whole <= passing < 4.1 * whole
    assert counter.has_seen(made.untyped_storage())
    assert not counter.has_seen(weight.untyped_storage())


def test_the_measured_peak_is_one_of_this_machine() -> None:
    assert 1e8 < op_counts.measured_peak(torch.float32) < 1e14
