"""Matrices that a tensor group holds together as DTensors, beside FSDP2 over the data axis.

A plan names modules of the model, with ``*`` for any one part of a name, and says how each is
divided: in words of Hugging Face, or as a ``ParallelStyle`` of torch. What it does not name stays
whole on each rank of the group.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.parallel import tensor_rules, tensor_shards
from hpcrun.text import listed

# Of linear layers, and of embeddings: the dimension of the weight that is divided.
_WORDS = {"colwise": 0, "rowwise": 1, "colwise_gather_output": 0, "embedding_rowwise": 0}
_HEADS = ("num_attention_heads", "num_key_value_heads")
_SHOWN = 3
_HINT = (
    'give it tensor_plan={"layers.*.attention.query": "colwise", "layers.*.attention.out": '
    '"rowwise"}, by the names of model.named_modules(); see docs/precision.md'
)


def styles_of(model: Any, given: Mapping[str, Any] | None, size: int) -> list[tuple[Any, Any]]:
    """Return the modules that a plan divides, each with its style.

    The model is whole, as the program has it; ``given`` is the program's plan, None for that of the
    modules (``tensor_parallel_plan``), else of a Hugging Face model; ``size`` are the ranks of a
    tensor group. Raises UsageError if there is no plan, or it does not fit the model or the size.
    """
    if size == 1 and given is None:
        return []
    where, plan = "tensor_plan", given
    if plan is None:
        where, plan = tensor_rules.PLAN, dict(tensor_rules.named_styles(model))
    if not plan and given is None:
        where, plan = "the model's _tp_plan", getattr(model, "_tp_plan", None)
    if not plan:
        raise UsageError(
            f"session.fully_shard: parallel.tensor is {size}, and nothing says which matrices its "
            "ranks divide",
            hint=_HINT,
        )
    config = getattr(model, "config", None)
    for key in _HEADS:
        if isinstance(heads := getattr(config, key, None), int) and heads % size:
            raise UsageError(
                f"session.fully_shard: the model's {key} is {heads}, which parallel.tensor, "
                f"{size}, does not divide",
                hint="set parallel.tensor to a divisor of it",
            )
    found: dict[str, tuple[Any, Any]] = {}
    for pattern, style in plan.items():
        matched = dict(_matching(model, pattern))
        if not matched or matched.keys() & found.keys():
            what = "no module of the model" if not matched else "modules that it names twice"
            raise UsageError(f"session.fully_shard: {where} names {pattern!r}: {what}", hint=_HINT)
        for name, module in matched.items():
            if wrong := _misfit(module, style, size):
                message = f"session.fully_shard: {where}: {name}: {wrong}"
                raise UsageError(message, hint=_HINT)
            found[name] = module, style
    _check_ties(model, found)
    return [*found.values()]


def divide(styles: list[tuple[Any, Any]], model: Any, mesh: Any) -> None:
    """Divide the modules of a plan in place; all ranks hold the same weights before.

    ``mesh`` is that of the tensor group, with one dimension.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    for module, style in styles:
        parallelize_module(module, mesh, _of_torch(style), src_data_rank=None)
    for name, buffer in model.named_buffers():
        if tensor_shards.is_divided(buffer):
            raise UsageError(
                f"session.fully_shard: tensor_plan divides the buffer {name}, which nobody has "
                "tried",
                hint="leave its module out of tensor_plan",
            )


def _matching(model: Any, pattern: str) -> Iterator[tuple[str, Any]]:
    wanted = pattern.split(".")
    for name, module in model.named_modules():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            yield name, module


def _misfit(module: Any, style: Any, size: int) -> str | None:
    """Return why a module is not divided so; None if it is."""
    import torch
    from torch.distributed.tensor.parallel import ParallelStyle

    if isinstance(style, ParallelStyle):
        return None
    if style not in _WORDS:
        return (
            f"found {style!r}; accepted are {', '.join(_WORDS)}, or a style of "
            "torch.distributed.tensor.parallel"
        )
    kind = torch.nn.Embedding if style.startswith("embedding") else torch.nn.Linear
    if not isinstance(module, kind):
        return f"{style} divides a torch.nn.{kind.__name__}, and it is a {type(module).__name__}"
    count = module.weight.shape[_WORDS[style]]
    return f"parallel.tensor, {size}, does not divide its {count}" if count % size else None


def _check_ties(model: Any, found: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise UsageError for a parameter of other modules, too, which would be another one then."""
    owners = collections.Counter(
        id(one)
        for module in model.modules()
        for one in {id(each): each for each in module.parameters(recurse=False)}.values()
    )
    tied = [n for n, (m, _) in found.items() if any(owners[id(one)] > 1 for one in m.parameters())]
    if tied:
        raise UsageError(
            f"session.fully_shard: the plan divides {listed(tied, _SHOWN, rest=', …')}, whose "
            "weights other modules use, too",
            hint="give a tensor_plan=… without them: they stay whole",
        )


def _of_torch(style: Any) -> Any:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    words = {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    }
    return words[style] if isinstance(style, str) else style
