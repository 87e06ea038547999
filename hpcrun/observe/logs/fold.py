"""Folding: a line that several ranks wrote is shown once, with the ranks.

::

    folder = LineFolder()
    folder.feed(0, [b"step 1", b"loss 2.5"])
    folder.feed(1, [b"step 1"])
    folder.take()         # [(0b11, b"step 1"), (0b01, b"loss 2.5")]

The order of each rank's lines is kept. A line waits until all ranks that have it queued have come
to it; where two wrote the same lines in different orders, one of these lines is shown twice.

`LineFolder` folds lines as they come (following). `fold` folds a window of long files (reading):
most lines are written by all ranks or by one, and where that is so of a whole window, and the
common lines have one order, sets fold it without a step per line; `LineFolder` does the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import compress

# A bit mask of ranks, and the line that they wrote.
Folded = tuple[int, bytes]
# Rank -> its next lines, without their ends.
Window = Mapping[int, list[bytes]]

_MASKS = 500


class _Queue:
    """The lines of one rank that wait: ``keys[head:]``."""

    __slots__ = ("bit", "head", "keys", "limit", "times", "waiting")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.keys: list[Hashable] = []
        self.head = 0
        self.limit = 0
        self.times: deque[tuple[float, int]] = deque()
        self.waiting: dict[bytes, int] = {}

    def again(self, line: bytes) -> Hashable:
        """Return a key for a line that waits in this queue already."""
        count = self.waiting.get(line, 1)
        self.waiting[line] = count + 1
        return line, count

    def older_than(self, moment: float) -> int:
        """Return how many of the keys had come by then, those shown already included."""
        count = 0
        for came, end in self.times:
            if came > moment:
                break
            count = end
        return count

    def compact(self) -> None:
        """Drop the keys that were shown."""
        head = self.head
        if not head:
            return
        del self.keys[:head]
        self.times = deque((came, end - head) for came, end in self.times if end > head)
        self.head = 0
        if self.waiting:
            again = (key for key in self.keys if isinstance(key, tuple))
            self.waiting = {line: count + 1 for line, count in again}


class LineFolder:
    """Folds the lines of an attempt's ranks as they come."""

    def __init__(self) -> None:
        # Bit mask of those that are known to write.
        self.ranks = 0
        self._queues: dict[int, _Queue] = {}
        self._holders: dict[Hashable, int] = {}
        self._arrived: dict[Hashable, int] = {}
        self._members: dict[int, list[_Queue]] = {}

    def join(self, rank: int) -> None:
        """Announce a rank that will write."""
        if rank not in self._queues:
            self._queues[rank] = _Queue(1 << rank)
            self.ranks |= 1 << rank

    @property
    def is_empty(self) -> bool:
        """True if no line waits."""
        return not self._holders

    def rest(self) -> dict[int, list[bytes]]:
        """Return each rank's waiting lines."""
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
        """Return the lines that need not wait any longer, each with the ranks that wrote it.

        A line that all ranks wrote is returned as soon as all have come to it. Other lines are
        returned if they had come ``before`` this time, without the ranks that they still wait for;
        if that is None, all but the later half of the lines of ``open_ranks``, which write more.
        """
        for rank, queue in self._queues.items():
            queue.compact()
            left = len(queue.keys)
            if before is not None:
                queue.limit = queue.older_than(before)
            else:
                queue.limit = left // 2 if rank in open_ranks else left
        folded: list[Folded] = []
        self._merge([queue for queue in self._queues.values() if queue.keys], folded)
        while (key := self._crossed()) is not None:
            here = self._arrived.pop(key)
            self._holders[key] &= ~here
            self._merge(self._pop(key, here, folded), folded)
        return folded

    def _merge(self, todo: list[_Queue], folded: list[Folded]) -> None:
        todo = todo[::-1]
        while todo:
            queue = todo.pop()
            key = self._next_shared(queue, folded)
            if key is None:
                continue
            mask = self._holders[key]
            here = self._arrived.get(key, 0) | queue.bit
            if here == mask and (mask == self.ranks or self._ripe(mask)):
                del self._holders[key]
                self._arrived.pop(key, None)
                todo += reversed(self._pop(key, mask, folded))
            else:
                self._arrived[key] = here

    def _next_shared(self, queue: _Queue, folded: list[Folded]) -> Hashable | None:
        """Move a rank's own lines to ``folded``, up to a line that others wrote too."""
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
            folded.append((bit, _line(key)))
            head += 1
        queue.head = head
        return shared

    def _pop(self, key: Hashable, mask: int, folded: list[Folded]) -> list[_Queue]:
        """Move the line that these ranks have come to; return their queues."""
        folded.append((mask, _line(key)))
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
        """Find a deadlock: a line at which ranks wait for others that wait for them."""
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


def fold(window: Window, open_ranks: frozenset[int]) -> tuple[list[Folded], dict[int, list[bytes]]]:
    """Fold the next lines of files; return what is folded, and what waits for further lines.

    ``open_ranks`` have more lines than those in the window. At least one line is folded, unless one
    of these ranks has fewer than two.
    """
    rest: dict[int, list[bytes]] = {rank: [] for rank in window}
    window = {rank: lines for rank, lines in window.items() if lines or rank in open_ranks}
    if not window:
        return [], rest
    found = _by_sets(window)
    if found is None:
        folder = LineFolder()
        for rank, lines in window.items():
            folder.feed(rank, lines)
        found = folder.take(open_ranks=open_ranks), folder.rest()
    return found[0], {**rest, **found[1]}


def _by_sets(window: Window) -> tuple[list[Folded], dict[int, list[bytes]]] | None:
    """Fold up to the last line that all have; None where it is not as simple as that."""
    everyone = sum(1 << rank for rank in window)
    common = set.intersection(*map(set, window.values()))
    marks = {rank: list(map(common.__contains__, lines)) for rank, lines in window.items()}
    anchors = [list(compress(lines, marks[rank])) for rank, lines in window.items()]
    count = min(map(len, anchors))
    first = anchors[0][:count]
    if not count or any(other[:count] != first for other in anchors[1:]):
        return None
    between: dict[int, list[Folded]] = {}
    rest: dict[int, list[bytes]] = {}
    alone: set[bytes] = set()
    number_alone = 0
    for rank, lines in window.items():
        bit = 1 << rank
        own = [index for index, is_common in enumerate(marks[rank]) if not is_common]
        mine = []
        for passed, index in enumerate(own):
            anchor = index - passed
            if anchor >= count:
                break
            mine.append(lines[index])
            between.setdefault(anchor, []).append((bit, lines[index]))
        different = set(mine)
        number_alone += len(different)
        alone |= different
        rest[rank] = lines[count + len(mine) :]
    if len(alone) != number_alone:
        return None
    folded: list[Folded] = []
    for index, line in enumerate(first):
        if index in between:
            folded += between[index]
        folded.append((everyone, line))
    return folded, rest
