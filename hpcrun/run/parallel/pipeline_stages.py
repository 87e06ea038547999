"""A model as the stages of a pipeline, by DeepSpeed's PipelineModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.parallel.rank_layout import RankGroups


def is_pipeline(model: Any) -> bool:
    """Check whether a model is DeepSpeed's PipelineModule already."""
    return any(cls.__name__ == "PipelineModule" for cls in type(model).__mro__)


def staged(
    model: Any, loss: Callable[..., Any], groups: RankGroups, config: Mapping[str, Any]
) -> Any:
    """Return a ``torch.nn.Sequential`` and its loss as a PipelineModule over the layout's stages.

    A layer that has an earlier layer of the sequence inside (``self.embedding``), and no parameter
    of its own, is tied to it. ``config`` is the block ``pipeline`` of DeepSpeed's configuration.
    Raises UsageError if the model is no Sequential, has fewer layers than there are stages, or ties
    parameters in another way.
    """
    import torch
    from deepspeed.checkpoint.constants import (
        PIPELINE_REPLICATED_PARAMETER_PATTERNS,
        UNIVERSAL_CHECKPOINT_INFO,
        UNIVERSAL_CHECKPOINT_VERSION_KEY,
        UNIVERSAL_CHECKPOINT_VERSION_VALUE,
    )
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import ProcessTopology

    size = groups.layout.size
    if not isinstance(model, torch.nn.Sequential):
        raise UsageError(
            f"parallel.pipeline divides a torch.nn.Sequential, and the model is a "
            f"{type(model).__name__}",
            hint="give its layers in order as a torch.nn.Sequential, and the loss as loss=…, or "
            "make a deepspeed.pipe.PipelineModule yourself",
        )
    if len(model) < size["pipeline"]:
        raise UsageError(
            f"parallel.pipeline is {size['pipeline']}, and the model has {len(model)} layers"
        )
    topology = ProcessTopology(
        axes=["pipe", "data", "model"],
        dims=[size["pipeline"], size["data"], size["sequence"] * size["tensor"]],
    )
    partition = config.get("partition") or "best"
    made = PipelineModule(
        _tied(list(model)),
        topology=topology,
        loss_fn=loss,
        # ``best`` is DeepSpeed's default in the configuration, and no method of its module.
        partition_method="parameters" if partition == "best" else partition,
        activation_checkpoint_interval=int(config.get("activation_checkpoint_interval") or 0),
    )
    # Both stages of a tied layer save it.
    replicated = {PIPELINE_REPLICATED_PARAMETER_PATTERNS: [r"tied_modules\..*"]}
    version = {UNIVERSAL_CHECKPOINT_VERSION_KEY: UNIVERSAL_CHECKPOINT_VERSION_VALUE}
    setattr(made, UNIVERSAL_CHECKPOINT_INFO, {**version, **replicated})
    if groups.layout.divided.keys() & {"sequence", "tensor"}:
        groups.lend(made._grid)
    return made


def _tied(layers: list[Any]) -> list[Any]:
    """Return the layers, those that share parameters as DeepSpeed's TiedLayerSpec."""
    from deepspeed.pipe import TiedLayerSpec

    owners: dict[int, int] = {}
    shared: dict[int, int] = {}
    for place, layer in enumerate(layers):
        for parameter in layer.parameters():
            first = owners.setdefault(id(parameter), place)
            if first == place:
                continue
            own = {id(one) for one in layer.parameters()}
            whole = {id(one) for one in layers[first].parameters()}
            if not own <= whole or all(one is not layers[first] for one in layer.modules()):
                raise UsageError(
                    f"layers {first} and {place} of the pipeline share a parameter, and DeepSpeed "
                    "ties whole layers alone",
                    hint=f"let layer {place} have layer {first} as a child, and no parameter else",
                )
            shared[place] = first
    made = list(layers)
    for first in set(shared.values()):
        names = [name for name, _ in layers[first].named_parameters()]
        key = f"layer{first}"
        given = _class_of(layers[first])
        made[first] = TiedLayerSpec(key, given, tied_weight_attr=names)
        for place in (one for one, owner in shared.items() if owner == first):
            through = _Through(layers[place])
            made[place] = TiedLayerSpec(key, given, forward_fn=through, tied_weight_attr=names)
    return made


def _class_of(layer: Any) -> type:
    """Return a class of modules whose only instance is there already, as DeepSpeed wants one."""
    import torch

    return type(type(layer).__name__, (torch.nn.Module,), {"__new__": lambda cls: layer})


class _Through:
    """The forward pass of a layer around the tied one."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, _tied: Any, *inputs: Any) -> Any:
        return self._layer(*inputs)
