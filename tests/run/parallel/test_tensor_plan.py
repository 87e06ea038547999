"""Plans of matrices that a tensor group divides: from where they come, and what does not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor.parallel import SequenceParallel

from hpcrun.errors import UsageError
from hpcrun.run.parallel import tensor_plan


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)
        self.norm = torch.nn.LayerNorm(4)


PAIR = {"up": "colwise", "down": "rowwise"}


class _Planned(_Layer):
    tensor_parallel_plan = PAIR


def _model(layer: type[_Layer] = _Layer, **given: Any) -> Any:
    model = torch.nn.Module()
    model.words = torch.nn.Embedding(8, 4)
    model.layers = torch.nn.ModuleList(layer() for _ in range(2))
    model.head = torch.nn.Linear(4, 8, bias=False)
    for name, value in given.items():
        setattr(model, name, value)
    return model


def _named(model: Any, given: Any = None, size: int = 2) -> dict[str, Any]:
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(one)]: style for one, style in tensor_plan.styles_of(model, given, size)}


def test_the_programs_plan_goes_before_the_modules_and_that_before_hugging_faces() -> None:
    of_modules = {f"layers.{n}.{k}": v for n in (0, 1) for k, v in PAIR.items()}
    model = _model(_Planned, _tp_plan={"head": "colwise_gather_output"})
    assert _named(model) == of_modules
    assert _named(model, {"layers.*.up": "colwise"}) == {
        "layers.0.up": "colwise",
        "layers.1.up": "colwise",
    }
    plan = {"words": "embedding_rowwise", "layers.*.up": "colwise", "head": "colwise_gather_output"}
    assert _named(_model(_tp_plan=plan)).keys() == {"words", "layers.0.up", "layers.1.up", "head"}
    style = SequenceParallel()
    assert _named(model, {"layers.1.norm": style}) == {"layers.1.norm": style}
    # One rank holds all; a plan that is given is looked at none the less.
    assert _named(_model(), size=1) == {}
    with pytest.raises(UsageError, match="names 'heads'"):
        _named(_model(), {"heads": "colwise"}, size=1)


@pytest.mark.parametrize(
    ("given", "attributes", "size", "said"),
    [
        (None, {}, 2, "parallel.tensor is 2, and nothing says which matrices its ranks divide"),
        ({}, {}, 2, "parallel.tensor is 2, and nothing says which matrices its ranks divide"),
        ({"up": "colwise"}, {}, 2, "tensor_plan names 'up': no module of the model"),
        (
            {"layers.*.up": "colwise", "layers.0.*": "colwise"},
            *({}, 2, r"names 'layers\.0\.\*': modules that it names twice"),
        ),
        ({"head": "column"}, {}, 2, "head: found 'column'; accepted are colwise, rowwise, "),
        ({"words": "colwise"}, {}, 2, "words: colwise divides a torch.nn.Linear, and it is a Emb"),
        ({"head": "embedding_rowwise"}, {}, 2, "divides a torch.nn.Embedding, and it is a Linear"),
        ({"layers.*.up": "colwise"}, {}, 4, "layers.0.up: parallel.tensor, 4, does not divide its"),
        ({"layers.*.down": "rowwise"}, {}, 4, "layers.0.down: parallel.tensor, 4, does not divide"),
        (
            None,
            {"_tp_plan": {"layers.*.norm": "replicated_with_grad_allreduce"}},
            *(2, "the model's _tp_plan: layers.0.norm: found 'replicated_with_grad_allreduce'"),
        ),
        (
            {"head": "colwise"},
            {"config": SimpleNamespace(num_attention_heads=4, num_key_value_heads=2)},
            *(4, "the model's num_key_value_heads is 2, which parallel.tensor, 4, does not"),
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    given: Any, attributes: dict[str, Any], size: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        tensor_plan.styles_of(_model(**attributes), given, size)
    assert refused.value.hint


def test_weights_that_are_used_twice_stay_whole() -> None:
    model = _model()
    model.head.weight = model.words.weight
    for name, style in (("head", "colwise_gather_output"), ("words", "embedding_rowwise")):
        with pytest.raises(UsageError, match=f"the plan divides {name}, whose weights other mod"):
            tensor_plan.styles_of(model, {name: style}, 2)
    # The module itself may lie in two places.
    model.again = model.layers
    assert len(tensor_plan.styles_of(model, {"layers.*.up": "colwise"}, 2)) == 2
