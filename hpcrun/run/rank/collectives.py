"""Collectives on small Python values, called by all ranks at the same point.

An error on one rank becomes the same `CheckpointError` on all of them, so that no rank waits for
one that has left. Values go up and down a binomial tree: N ranks need log2(N) rounds each way, and
no rank gets what it does not ask for; only `gather` brings all values to all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcrun.errors import CheckpointError, HpcrunError
from hpcrun.run.rank import peer_messages, process_groups


class Collectives:
    """The ranks of an attempt, as one of them sees the others.

    ``group`` is a gloo process group of all ranks; None uses the one of metrics and stop votes.
    """

    def __init__(self, rank: int, world_size: int, group: Any = None) -> None:
        self.rank, self.world_size = rank, world_size
        self._group = group
        self.doing = "starting"
        """The name of the work that all ranks share now, such as ``saving step 20``; it goes with
        each message, so that a rank at other work is told from one that answers."""

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
                peer_messages.wait(self._send(value, self.rank - distance))
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
        works: list[peer_messages.Sending] = []
        for distance in reversed(below):
            if self.rank + distance < self.world_size:
                part = values[distance:], common
                works += self._send(part, self.rank + distance)
                values = values[:distance]
        peer_messages.wait(works)
        return values[0], common

    def _send(self, value: Any, peer: int) -> list[peer_messages.Sending]:
        return peer_messages.send(self._gloo(), (self.doing, value), peer)

    def _receive(self, peer: int) -> Any:
        """Return a value that another rank sends; raise HpcrunError if it is at other work."""
        doing, value = peer_messages.receive(self._gloo(), peer)
        if doing != self.doing:
            raise HpcrunError(
                f"the ranks are apart: rank {peer} is {doing}, rank {self.rank} {self.doing}",
                hint="all ranks have to take and leave the same steps, and to save after the same",
            )
        return value

    def _distances(self) -> Iterator[int]:
        distance = 1
        while distance < self.world_size:
            yield distance
            distance *= 2

    def _gloo(self) -> Any:
        if self._group is None:
            self._group = process_groups.own_group(process_groups.HOST)
        return self._group


def raise_first(error: tuple[int, str] | None, what: str) -> None:
    """Raise a `CheckpointError` of ``what``, rank and error, if there is an error."""
    if error is not None:
        raise CheckpointError(f"{what}: rank {error[0]}: {error[1]}")
