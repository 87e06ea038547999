"""Lines that several ranks of one attempt wrote alike, told once.

::

    group = Group()
    group.feed(0, [b"step 1", b"loss 2.5"])
    group.feed(1, [b"step 1"])
    group.take()          # [(0b11, b"step 1"), (0b01, b"loss 2.5")]

The order of each rank's lines is kept. A line waits until all ranks that have it queued have come
to it; where two wrote the same lines in different orders, one of these is told twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

Folded = tuple[int, bytes]

_MASKS = 500


class _Queue:
    """Lines of one rank that wait; ``keys[head:]`` are still to be told."""

    __slots__ = ("bit", "head", "keys", "limit", "times", "waiting")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.keys: list[Hashable] = []
        self.head = 0
        self.limit = 0
        self.times: deque[tuple[float, int]] = deque()
        self.waiting: dict[bytes, int] = {}

    def again(self, line: bytes) -> Hashable:
        """The key of a line that waits in this queue already."""
        count = self.waiting.get(line, 1)
        self.waiting[line] = count + 1
        return line, count

    def older_than(self, moment: float) -> int:
        """How many of the keys had come by then, those told included."""
        count = 0
        for came, end in self.times:
            if came > moment:
                break
            count = end
        return count

    def compact(self) -> None:
        head = self.head
        if not head:
            return
        del self.keys[:head]
        self.times = deque((came, end - head) for came, end in self.times if end > head)
        self.head = 0
        if self.waiting:
            again = (key for key in self.keys if isinstance(key, tuple))
            self.waiting = {line: count + 1 for line, count in again}


class Group:
    """The queues of an attempt's ranks; a set of ranks is a bit mask.

    Attributes
    ----------
    ranks
        Those that are known to write.
    """

    def __init__(self) -> None:
        self.ranks = 0
        self._queues: dict[int, _Queue] = {}
        self._holders: dict[Hashable, int] = {}
        self._arrived: dict[Hashable, int] = {}
        self._members: dict[int, list[_Queue]] = {}

    def join(self, rank: int) -> None:
        """A rank that will write."""
        if rank not in self._queues:
            self._queues[rank] = _Queue(1 << rank)
            self.ranks |= 1 << rank

    @property
    def is_empty(self) -> bool:
        """Whether no line waits."""
        return not self._holders

    def rest(self) -> dict[int, list[bytes]]:
        """The lines of each rank that wait."""
        return {
            rank: [_line(key) for key in queue.keys[queue.head :]]
            for rank, queue in self._queues.items()
        }

    def feed(self, rank: int, lines: list[bytes], now: float = 0.0) -> None:
        """Queue lines of a rank, without their ends, that came ``now``."""
        self.join(rank)
        queue = self._queues[rank]
        holders, bit, append = self._holders, queue.bit, queue.keys.append
        for line in lines:
            mask = holders.get(line, 0)
            if mask & bit:
                key = queue.again(line)
                holders[key] = holders.get(key, 0) | bit
                append(key)
            else:
                holders[line] = mask | bit
                append(line)
        queue.times.append((now, len(queue.keys)))

    def take(
        self, *, before: float | None = None, open_ranks: frozenset[int] = frozenset()
    ) -> list[Folded]:
        """Lines that are told now, each with the ranks that wrote it.

        What all ranks wrote is told as soon as they have. Of the rest

        Parameters
        ----------
        before
            Only what had come by this time is told; what is older than that and still waits for
            another rank is told without it. None: all is told but for
        open_ranks
            the later half of what waits of these: their next lines may be like it.
        """
        for rank, queue in self._queues.items():
            queue.compact()
            left = len(queue.keys)
            if before is not None:
                queue.limit = queue.older_than(before)
            else:
                queue.limit = left // 2 if rank in open_ranks else left
        told: list[Folded] = []
        self._merge([queue for queue in self._queues.values() if queue.keys], told)
        while (key := self._crossed()) is not None:
            here = self._arrived.pop(key)
            self._holders[key] &= ~here
            self._merge(self._tell(key, here, told), told)
        return told

    def _merge(self, todo: list[_Queue], told: list[Folded]) -> None:
        todo = todo[::-1]
        while todo:
            queue = todo.pop()
            key = self._next_shared(queue, told)
            if key is None:
                continue
            mask = self._holders[key]
            here = self._arrived.get(key, 0) | queue.bit
            if here == mask and (mask == self.ranks or self._ripe(mask)):
                del self._holders[key]
                self._arrived.pop(key, None)
                todo += reversed(self._tell(key, mask, told))
            else:
                self._arrived[key] = here

    def _next_shared(self, queue: _Queue, told: list[Folded]) -> Hashable | None:
        """Tell what a rank alone wrote, up to a line that others wrote too."""
        keys, head, limit, bit = queue.keys, queue.head, queue.limit, queue.bit
        end = len(keys) if bit == self.ranks else limit
        holders = self._holders
        shared = None
        while head < len(keys):
            key = keys[head]
            if holders[key] != bit:
                shared = key
                break
            if head >= end:
                break
            del holders[key]
            told.append((bit, _line(key)))
            head += 1
        queue.head = head
        return shared

    def _tell(self, key: Hashable, mask: int, told: list[Folded]) -> list[_Queue]:
        """Tell a line that these ranks have come to; their queues."""
        told.append((mask, _line(key)))
        queues = self._of(mask)
        for queue in queues:
            queue.head += 1
        return queues

    def _ripe(self, mask: int) -> bool:
        return all(queue.head < queue.limit for queue in self._of(mask))

    def _of(self, mask: int) -> list[_Queue]:
        found = self._members.get(mask)
        if found is None:
            if len(self._members) > _MASKS:
                self._members.clear()
            found = [queue for queue in self._queues.values() if queue.bit & mask]
            self._members[mask] = found
        return found

    def _crossed(self) -> Hashable | None:
        """A line at which ranks wait for others that wait for them."""
        for queue in self._queues.values():
            seen: set[int] = set()
            while queue.head < min(queue.limit, len(queue.keys)):
                key = queue.keys[queue.head]
                missing = self._holders[key] & ~self._arrived.get(key, 0)
                if not missing:
                    break
                if queue.bit in seen:
                    return key
                seen.add(queue.bit)
                queue = self._queues[(missing & -missing).bit_length() - 1]
        return None


def _line(key: Hashable) -> bytes:
    return key if type(key) is bytes else key[0]  # type: ignore[index]
