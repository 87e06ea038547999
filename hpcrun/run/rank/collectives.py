"""Collectives on small Python values, called by all ranks at the same point.

An error on one rank becomes the same `CheckpointError` on all of them, so that no rank waits for
one that has left. Values go up and down a binomial tree: N ranks need log2(N) rounds each way, and
no rank gets what it does not ask for; only `gather` brings all values to all ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.run.rank import process_groups

# Bytes of a message's first part: its length, and all of a short value.
_HEAD = 1 << 10
_LENGTH = 8


class Collectives:
    """The ranks of an attempt, as one of them sees the others.

    ``group`` is a gloo process group of all ranks; None uses the one of metrics and stop votes.
    """

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

    def reduce(self, value: Any, merge: Callable[[Any, Any], Any]) -> Any:
        """Return on rank 0 the values of all ranks, merged two at a time; None on other ranks.

        ``merge(lower, higher)`` gets what neighbouring ranges of ranks have.
        """
        for distance in self._distances():
            if self.rank & distance:
                _wait(self._send(value, self.rank - distance))
                return None
            if self.rank + distance < self.world_size:
                value = merge(value, self._receive(self.rank + distance))
        return value

    def all_reduce(self, value: Any, merge: Callable[[Any, Any], Any]) -> Any:
        """As `reduce`, and return it on all ranks."""
        return self._scatter([self.reduce(value, merge)] * self.world_size, None)[0]

    def first(self, value: Any) -> tuple[int, Any] | None:
        """Return on all ranks the lowest rank whose value is not None, and that value; or None."""
        own = None if value is None else (self.rank, value)
        found: tuple[int, Any] | None = self.all_reduce(own, lambda one, other: one or other)
        return found

    def scatter_from_rank_0(self, ask: Callable[[], Sequence[Any]], what: str) -> Any:
        """Call ``ask`` on rank 0 and return to each rank its one of the results, in rank order.

        All raise `CheckpointError` if it raised that or an `OSError`, whose text follows ``what``.
        """
        found: Sequence[Any] = [None] * self.world_size
        error: tuple[str, str | None] | None = None
        if self.rank == 0:
            try:
                found = ask()
            except OSError as problem:
                error = f"{what}: {problem}", None
            except CheckpointError as problem:
                error = problem.message, problem.hint
        own, error = self._scatter(found, error)
        if error is not None:
            raise CheckpointError(error[0], hint=error[1])
        return own

    def from_rank_0(self, ask: Callable[[], Any], what: str) -> Any:
        """Call ``ask`` on rank 0 and return its result on all ranks.

        All raise `CheckpointError` if it raised that or an `OSError`, whose text follows ``what``.
        """
        return self.scatter_from_rank_0(lambda: [ask()] * self.world_size, what)

    def agree(self, error: str | None, what: str) -> None:
        """Raise the lowest failing rank's error on all ranks, if any rank has one."""
        raise_first(self.first(error), what)

    def _scatter(self, values: Sequence[Any], common: Any) -> tuple[Any, Any]:
        """Return to each rank its one of rank 0's values, and what rank 0 has for all."""
        below = []
        for distance in self._distances():
            if self.rank & distance:
                values, common = self._receive(self.rank - distance)
                break
            below.append(distance)
        works = []
        for distance in reversed(below):
            if self.rank + distance < self.world_size:
                works += self._send((values[distance:], common), self.rank + distance)
                values = values[:distance]
        _wait(works)
        return values[0], common

    def _distances(self) -> Iterator[int]:
        distance = 1
        while distance < self.world_size:
            yield distance
            distance *= 2

    def _send(self, value: Any, peer: int) -> list[tuple[Any, Any]]:
        """Begin to send a value to another rank; return what `_wait` takes."""
        import torch

        data = pickle.dumps(value)
        data = (len(data).to_bytes(_LENGTH, "big") + data).ljust(_HEAD, b"\0")
        parts = [part for part in (data[:_HEAD], data[_HEAD:]) if part]
        tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]
        return [(self._gloo().send([each], peer, tag), each) for tag, each in enumerate(tensors)]

    def _receive(self, peer: int) -> Any:
        import torch

        def take(size: int, tag: int) -> bytes:
            tensor = torch.empty(size, dtype=torch.uint8)
            self._gloo().recv([tensor], peer, tag).wait()
            return bytes(tensor.numpy())

        head = take(_HEAD, 0)
        size, data = int.from_bytes(head[:_LENGTH], "big"), head[_LENGTH:]
        data += take(size - len(data), 1) if size > len(data) else b""
        return pickle.loads(data)  # noqa: S301 - of this attempt's own ranks

    def _gloo(self) -> Any:
        if self._group is None:
            self._group = process_groups.own_group(process_groups.HOST)
        return self._group


def _wait(works: list[tuple[Any, Any]]) -> None:
    """Wait for sends, whose tensors are held until then."""
    for work, _ in works:
        work.wait()


def raise_first(error: tuple[int, str] | None, what: str) -> None:
    """Raise a `CheckpointError` of ``what``, rank and error, if there is an error."""
    if error is not None:
        raise CheckpointError(f"{what}: rank {error[0]}: {error[1]}")
