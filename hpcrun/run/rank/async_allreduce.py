"""What the ranks tell each other between steps: one small all-reduce that no step waits for.

It has a process group of its own, on the host: a rank that is leaving may take part in one more
exchange without its peers mistaking that for a collective of the training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hpcrun.run.rank import process_groups


class Exchange:
    """Numbers averaged over all ranks, votes on a stop, and a word of rank 0.

    Parameters
    ----------
    numbers
        Every rank gives as many.
    vote
        Whether this rank has been told to stop.
    word
        Rank 0's; that of other ranks is not heard.
    rank, world_size
        With one rank nothing is sent.

    Raises
    ------
    HpcrunError
        There are several ranks and no process group, so that numbers cannot be averaged.
    """

    def __init__(
        self, numbers: Sequence[float], vote: bool, word: int, rank: int, world_size: int
    ) -> None:
        self._world_size = world_size
        self._sent: Any = [*numbers, float(vote), float(word)]
        self._work: Any = None
        processes = process_groups.of_the_host() if world_size > 1 else None
        if processes is None and world_size > 1 and numbers:
            raise process_groups.missing()
        if processes is None:
            self._world_size = 1
            return
        import torch

        if rank != 0:
            self._sent[-1] = 0.0
        self._sent = torch.tensor(self._sent, dtype=torch.float64)
        # torch.distributed.all_reduce does the same behind 0.1 ms of Python.
        self._work = processes.allreduce([self._sent])

    def wait(self, patience: float) -> bool:
        """Wait so many seconds for the other ranks at most; whether `result` would not wait."""
        deadline = time.monotonic() + patience
        while self._work is not None and not self._work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def result(self) -> tuple[list[float], bool, int]:
        """The averages in the order given, whether any rank is to stop, and rank 0's word."""
        if self._work is not None:
            self._work.wait()
            self._sent = self._sent.tolist()
        *sums, votes, word = self._sent
        return [total / self._world_size for total in sums], votes > 0, int(word)
