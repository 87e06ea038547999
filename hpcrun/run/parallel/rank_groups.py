"""The process groups of a layout, as DeepSpeed asks for them (its ``mpu``)."""

from __future__ import annotations

from typing import Any

from hpcrun.run.parallel.rank_layout import RankLayout

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


class RankGroups:
    """This rank's groups; making them is collective.

    DeepSpeed calls the methods. There is none for the size of a sequence group on purpose: with
    one, DeepSpeed sums gradients over its ranks, and each rank's loss would have to be its part of
    the sequence's; so gradients are means over the ranks of `sequence_data`, and each rank's loss
    is the mean over its own tokens.

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
