"""The places of ranks in a model that is divided between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.state.spec.parallel_block import AXES, EXPERT, divided, laid_out, model_ranks


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
        sizes = {**divided(parallel), "data": world_size // model_ranks(parallel)}
        self.size = {axis: sizes.get(axis, 1) for axis in AXES}
        self.asked = laid_out(parallel)
        self.divided = divided(parallel)
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
