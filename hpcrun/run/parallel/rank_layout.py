"""The places of ranks in a model that is divided between them, and their process groups."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.state.spec.parallel_block import AXES, EXPERT, divided_axes, laid_out, model_ranks

# Groups by name -> the axes along which their ranks differ.
_GROUPS = {
    "pipeline": ("pipeline",),
    "data": ("data",),
    "sequence": ("sequence",),
    "tensor": ("tensor",),
    # ZeRO divides its states, and gradients are averaged, over all that see different tokens.
    "sequence_data": ("data", "sequence"),
    "model": ("pipeline", "tensor"),
}


class RankLayout:
    """The places of ranks along `AXES`; the last axis changes fastest.

    ``parallel`` is the spec's block, in which an axis that is absent is 1; ``world_size`` are all
    ranks. Raises UsageError if those that hold one copy of the model together do not divide them.
    """

    def __init__(self, parallel: Mapping[str, Any], world_size: int) -> None:
        if world_size % model_ranks(parallel):
            raise UsageError(
                f"{model_ranks(parallel)} ranks hold one copy of the model (parallel), which do "
                f"not divide the {world_size} ranks of this program"
            )
        sizes = {**divided_axes(parallel), "data": world_size // model_ranks(parallel)}
        self.size = {axis: sizes.get(axis, 1) for axis in AXES}
        self.asked = laid_out(parallel)
        self.divided = divided_axes(parallel)
        self.experts = self.asked.get(EXPERT, 1)
        self._places = list(itertools.product(*(range(self.size[axis]) for axis in AXES)))

    def place(self, rank: int, axis: str) -> int:
        """Return a rank's place along an axis, from 0."""
        return self._places[rank][AXES.index(axis)]

    def groups(self, *axes: str) -> list[list[int]]:
        """Return the groups of ranks that differ along these axes alone, each in order of rank."""
        fixed = [index for index, axis in enumerate(AXES) if axis not in axes]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(self._places):
            found.setdefault(tuple(place[index] for index in fixed), []).append(rank)
        return list(found.values())

    def __str__(self) -> str:
        return " x ".join(f"{axis} {size}" for axis, size in self.size.items() if size > 1) or "1"


class RankGroups:
    """This rank's groups, as DeepSpeed asks for them (its ``mpu``); making them is collective.

    No method gives the size of a sequence group, on purpose: with one, DeepSpeed sums gradients
    over its ranks, and each rank's loss would have to be its part of the sequence's; so gradients
    are means over the ranks of `sequence_data`, and each rank's loss is the mean over its own
    tokens.

    Parameters
    ----------
    partition
        The name of the group that DeepSpeed is to take for data parallel. ZeRO 3 partitions over it
        and reduces there alone (ZeRO 1 and 2 do so over `sequence_data` by themselves).
    """

    def __init__(self, layout: RankLayout, partition: str = "data") -> None:
        import torch

        self.layout = layout
        self.rank = torch.distributed.get_rank()
        self._groups: dict[str, Any] = {}
        self._ranks: dict[str, list[int]] = {}
        self._partition = partition
        for name, axes in _GROUPS.items():
            for ranks in layout.groups(*axes):
                group = torch.distributed.new_group(ranks)
                if self.rank in ranks:
                    self._groups[name], self._ranks[name] = group, ranks

    def group(self, name: str) -> Any:
        """Return the process group of this name that this rank is in."""
        return self._groups[name]

    def _size(self, name: str) -> int:
        return len(self._ranks[name])

    def _place(self, name: str) -> int:
        return self._ranks[name].index(self.rank)

    def get_data_parallel_group(self) -> Any:
        return self._groups[self._partition]

    def get_data_parallel_world_size(self) -> int:
        return self._size("data")

    def get_data_parallel_rank(self) -> int:
        return self._place("data")

    def get_data_parallel_group_ranks(self) -> list[int]:
        return self._ranks["data"]

    def get_sequence_data_parallel_group(self) -> Any:
        return self._groups["sequence_data"]

    def get_sequence_data_parallel_world_size(self) -> int:
        return self._size("sequence_data")

    def get_sequence_data_parallel_rank(self) -> int:
        return self._place("sequence_data")

    def get_model_parallel_group(self) -> Any:
        return self._groups["model"]

    def get_model_parallel_world_size(self) -> int:
        return self._size("model")

    def get_model_parallel_rank(self) -> int:
        return self._place("model")

    def get_tensor_model_parallel_group(self) -> Any:
        return self._groups["tensor"]

    def get_tensor_model_parallel_world_size(self) -> int:
        return self._size("tensor")

    def get_tensor_model_parallel_rank(self) -> int:
        return self._place("tensor")

    def lend(self, mpu: Any, prefix: str = "get_") -> None:
        """Replace the methods of another ``mpu`` whose names begin so by those of these groups."""
        for name in dir(self):
            if name.startswith(prefix):
                setattr(mpu, name, getattr(self, name))
