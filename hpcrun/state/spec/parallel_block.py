"""The ``parallel`` block of a spec: how a model and its batch are divided between ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hpcrun.state.spec.spec_dataclass import spec_dataclass

# In the order in which ranks lie: those of a tensor group are neighbours.
AXES = ("pipeline", "data", "sequence", "tensor")
# What divides the model, or each sample.
DIVIDING = ("tensor", "pipeline", "sequence")
# Divided among ranks that see different samples.
EXPERT = "expert"


@spec_dataclass
class Parallel:
    """How a model and its batch are divided between the ranks of a run, by ``session.initialize``;
    see docs/parallelism.md."""

    tensor: int = 1
    """Ranks that hold each matrix together, by DeepSpeed's AutoTP; by DTensor in
    ``session.fully_shard``."""

    pipeline: int = 1
    """Stages of the model, each on ranks of its own, by DeepSpeed's PipelineModule; with ZeRO 0
    or 1."""

    sequence: int = 1
    """Ranks that have a part of each sequence, by DeepSpeed's Ulysses attention."""

    expert: int = 1
    """Ranks between which the experts of the model are divided, by DeepSpeed's MoE
    (``hpcrun.expert_layer``): some of those of ``data``. With ZeRO 0, 1 or 2."""

    data: int | Literal["auto"] = "auto"
    """Ranks that have different samples: ``auto`` is what is left, a number is checked against
    it."""


def divided_axes(parallel: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the axes of `DIVIDING` with more than one rank, of a block or of a manifest."""
    return _of_several(parallel, DIVIDING)


def laid_out(parallel: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the axes that a checkpoint is bound to: those of `divided_axes`, and the experts'."""
    return _of_several(parallel, (*DIVIDING, EXPERT))


def _of_several(parallel: Mapping[str, Any] | None, axes: Sequence[str]) -> dict[str, int]:
    """Return the axes that have more than one rank, and how many."""
    sizes = {axis: (parallel or {}).get(axis) for axis in axes}
    return {axis: size for axis, size in sizes.items() if isinstance(size, int) and size > 1}


def model_ranks(parallel: Mapping[str, Any] | None) -> int:
    """Return the number of ranks that hold one copy of the model together."""
    return math.prod(divided_axes(parallel).values())
