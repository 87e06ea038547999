"""Collectives on small Python values, called by all ranks at the same point.

An error on one rank becomes the same `CheckpointError` on all of them, so that no rank waits for
one that has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcrun.errors import CheckpointError


class Collectives:
    """The ranks of an attempt, as one of them sees the others."""

    def __init__(self, rank: int, world_size: int, group: Any = None) -> None:
        self.rank, self.world_size = rank, world_size
        self._group = group

    def on(self, group: Any) -> Collectives:
        """Return the same ranks on a process group of its own, for another thread."""
        return Collectives(self.rank, self.world_size, group)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        import torch

        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(gathered, value, group=self._group)
        return gathered

    def from_rank_0(self, ask: Callable[[], Any], what: str) -> Any:
        """Call ``ask`` on rank 0 and return its result on all ranks.

        All raise `CheckpointError` if it raised that or an `OSError`, whose text follows ``what``.
        """
        import torch

        answer: list[Any] = [None, None, None]
        if self.rank == 0:
            try:
                answer[0] = ask()
            except OSError as error:
                answer[1] = f"{what}: {error}"
            except CheckpointError as error:
                answer[1:] = error.message, error.hint
        if self.world_size > 1:
            torch.distributed.broadcast_object_list(answer, src=0, group=self._group)
        if answer[1] is not None:
            raise CheckpointError(answer[1], hint=answer[2])
        return answer[0]

    def agree(self, error: str | None, what: str) -> None:
        """Raise the lowest failing rank's error on all ranks, if any rank has one."""
        raise_first(self.gather(error), what)


def raise_first(errors: Sequence[str | None], what: str) -> None:
    """Raise a `CheckpointError` of ``what``, rank and error for the first error, if any."""
    for rank, error in enumerate(errors):
        if error is not None:
            raise CheckpointError(f"{what}: rank {rank}: {error}")
