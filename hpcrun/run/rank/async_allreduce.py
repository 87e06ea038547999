"""The asynchronous all-reduce between steps, for metrics and stop votes.

It has a process group of its own, on the host, so that a rank that is leaving can take part in one
more without its peers mistaking that for a collective of the training.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.rank import process_groups

# Numbers are sent by so many, so that ranks that give a few more do not wait for each other.
_ROOM = 32


class AsyncAllReduce:
    """An all-reduce under way: numbers to average, votes on a stop, and an integer of rank 0.

    Every rank gives numbers of the same names, in order; the ``word`` of ranks other than 0 is
    ignored. With one rank nothing is sent.
    """

    def __init__(
        self, numbers: Mapping[Any, float], vote: bool, word: int, rank: int, world_size: int
    ) -> None:
        self._world_size, self._names = world_size, [*numbers]
        self._mark = zlib.crc32(repr(self._names).encode())
        room = [0.0] * (_ROOM - len(numbers) % _ROOM)
        self._sent: Any = [*numbers.values(), *room, float(self._mark), float(vote), float(word)]
        self._work: Any = None
        group = process_groups.own_group(process_groups.HOST) if world_size > 1 else None
        if group is None and world_size > 1 and numbers:
            raise HpcrunError(
                "metrics that are tensors are averaged over all ranks, which have no process group",
                hint="call session.initialize(…) or torch.distributed.init_process_group() before",
            )
        if group is None:
            self._world_size = 1
            return
        import torch

        if rank != 0:
            self._sent[-1] = 0.0
        self._sent = torch.tensor(self._sent, dtype=torch.float64)
        # torch.distributed.all_reduce does the same behind 0.1 ms of Python.
        self._work = group.allreduce([self._sent])

    def wait(self, patience: float) -> bool:
        """Wait at most ``patience`` seconds; return whether `result` would not block."""
        deadline = time.monotonic() + patience
        while self._work is not None and not self._work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def result(self) -> tuple[list[float], bool, int]:
        """Return the averages in the order given, whether any rank voted, and rank 0's word.

        Raises UsageError if ranks gave numbers of different names.
        """
        if self._work is not None:
            self._work.wait()
            self._sent = self._sent.tolist()
        *sums, marks, votes, word = self._sent
        if marks != self._mark * self._world_size:
            given = ", ".join(f"{name!r} of step {step}" for step, name in self._names) or "none"
            raise UsageError(
                "session.log: tensors are averaged over all ranks, which gave different ones; this "
                f"rank gave {given}",
                hint="call session.log on all ranks with the same names; what rank 0 alone knows "
                "is a number: float(x) or x.item()",
            )
        sums = sums[: len(self._names)]
        return [total / self._world_size for total in sums], votes > 0, int(word)
