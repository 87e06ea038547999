"""Ranks that are threads of one process: torch.distributed's messages between them, counted."""

from __future__ import annotations

import math
import pickle
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

_STACK = 1 << 19


class Wire:
    """Messages between ranks that are threads; one of them runs at a time.

    ``clock`` has the rounds that came before what a rank does now: it sends one message a round,
    which arrives in the next. ``bytes`` are those that it sent and received.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.here = threading.local()
        self.turn = threading.Lock()
        self.clock = [0] * ranks
        self.bytes = [0] * ranks
        self._mail: dict[tuple[int, int], deque[tuple[Any, int]]] = defaultdict(deque)
        self._waiting: dict[tuple[int, int], threading.Lock] = {}
        self._arrived: dict[int, Any] = {}
        self._last: list[Any] = []
        self._gates: list[threading.Lock] = []

    def wait(self) -> threading.Lock:
        """Return a lock that is held, for `pause`."""
        lock = threading.Lock()
        lock.acquire()
        return lock

    def pause(self, lock: threading.Lock) -> None:
        self.turn.release()
        lock.acquire()
        self.turn.acquire()

    def send(self, tensors: list[Any], peer: int, tag: int) -> _Done:
        rank = self.here.rank
        self.bytes[rank] += tensors[0].numel()
        # The second part of a message is on its way with the first.
        self.clock[rank] += tag == 0
        self._mail[rank, peer].append((tensors[0].clone(), self.clock[rank]))
        if (lock := self._waiting.pop((rank, peer), None)) is not None:
            lock.release()
        return _Done()

    def recv(self, tensors: list[Any], peer: int, tag: int) -> _Done:
        rank = self.here.rank
        if not self._mail[peer, rank]:
            self._waiting[peer, rank] = lock = self.wait()
            self.pause(lock)
        tensor, clock = self._mail[peer, rank].popleft()
        tensors[0].copy_(tensor)
        self.bytes[rank] += tensor.numel()
        self.clock[rank] = max(self.clock[rank], clock)
        return _Done()

    def all_gather_object(self, found: list[Any], value: Any, group: Any = None) -> None:
        """As gloo does: sizes, then values of the largest size, each around a ring."""
        size = len(pickle.dumps(value))
        every = self._meet((value, size))
        largest = max(size for _, size in every)
        self.bytes[self.here.rank] += 2 * (self.ranks - 1) * (8 + largest)
        self.clock[self.here.rank] += 2 * (self.ranks - 1)
        found[:] = [value for value, _ in every]

    def broadcast_object_list(self, values: list[Any], src: int, group: Any = None) -> None:
        """As gloo does: the size, then the value, each down a binomial tree."""
        is_source = self.here.rank == src
        every = self._meet(pickle.dumps(values) if is_source else None)
        rounds = math.ceil(math.log2(self.ranks))
        self.bytes[self.here.rank] += (rounds if is_source else 1) * (8 + len(every[src]))
        self.clock[self.here.rank] += 2 * rounds
        if not is_source:
            values[:] = pickle.loads(every[src])  # noqa: S301 - our own

    def meet(self) -> None:
        """Wait for all ranks, as DeepSpeed's barriers do; counts as nothing."""
        self._meet(None)

    def _meet(self, value: Any) -> list[Any]:
        self._arrived[self.here.rank] = value
        if len(self._arrived) < self.ranks:
            self._gates.append(lock := self.wait())
            self.pause(lock)
            return list(self._last)
        self._last = [self._arrived[rank] for rank in range(self.ranks)]
        self._arrived = {}
        self.clock = [max(self.clock)] * self.ranks
        gates, self._gates = self._gates, []
        for lock in gates:
            lock.release()
        return list(self._last)


class _Done:
    def wait(self) -> None:
        """Return at once: the message is there."""


def in_turn(wire: Wire, act: Callable[[int], Any]) -> list[Any]:
    """Have each rank act in a thread; return what each returned, or the exception it raised."""
    found: list[Any] = [None] * wire.ranks

    def begin(rank: int) -> None:
        wire.here.rank = rank
        with wire.turn:
            try:
                found[rank] = act(rank)
            except BaseException as error:
                found[rank] = error

    before = threading.stack_size(_STACK)
    try:
        threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(wire.ranks)]
        for thread in threads:
            thread.start()
    finally:
        threading.stack_size(before)
    for thread in threads:
        thread.join()
    return found
