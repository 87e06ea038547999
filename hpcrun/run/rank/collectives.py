"""What all ranks find out together, each calling it at the same point.

An error on one rank becomes the same `CheckpointError` on all of them, so that no rank waits for
one that has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcrun.errors import CheckpointError


class Together:
    """The ranks of an attempt, as one of them sees the others.

    Attributes
    ----------
    rank, world_size
        This rank's number, and how many there are.
    """

    def __init__(self, rank: int, world_size: int, processes: Any = None) -> None:
        self.rank, self.world_size = rank, world_size
        self._processes = processes

    def on(self, processes: Any) -> Together:
        """The same ranks on a process group of their own, for another thread."""
        return Together(self.rank, self.world_size, processes)

    def gather(self, value: Any) -> list[Any]:
        """What each rank says, in the order of ranks."""
        import torch

        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(gathered, value, group=self._processes)
        return gathered

    def from_rank_0(self, ask: Callable[[], Any], what: str) -> Any:
        """What rank 0 finds.

        Parameters
        ----------
        what
            Comes before the words of an `OSError`.

        Raises
        ------
        CheckpointError
            Rank 0 met an `OSError`, or raised a `CheckpointError` itself.
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
            torch.distributed.broadcast_object_list(answer, src=0, group=self._processes)
        if answer[1] is not None:
            raise CheckpointError(answer[1], hint=answer[2])
        return answer[0]

    def agree(self, error: str | None, what: str) -> None:
        """Raise on all ranks where one of them has an error, the lowest one's."""
        raise_first(self.gather(error), what)


def raise_first(errors: Sequence[str | None], what: str) -> None:
    """Raise the first error there is.

    Raises
    ------
    CheckpointError
        ``what``, the rank and its error.
    """
    for rank, error in enumerate(errors):
        if error is not None:
            raise CheckpointError(f"{what}: rank {rank}: {error}")
