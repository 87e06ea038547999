"""The next lines of an attempt's ranks, folded: what reading many long logs is made of.

Most lines are written by all ranks or by one. Where that is so of a whole window, and all ranks
wrote the common ones in one order, sets find it out without a step a line; `Group` does the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

from hpcrun.observe.logs.fold import Folded, Group

Window = Mapping[int, list[bytes]]


def fold(window: Window, open_ranks: frozenset[int]) -> tuple[list[Folded], dict[int, list[bytes]]]:
    """What can be told of a window, and what has to wait for the ranks' next lines.

    Parameters
    ----------
    window
        Rank -> its next lines, without their ends.
    open_ranks
        Ranks that have more lines than these. Something is told, unless one of them has fewer than
        two.
    """
    nothing: dict[int, list[bytes]] = {rank: [] for rank in window}
    window = {rank: lines for rank, lines in window.items() if lines or rank in open_ranks}
    if not window:
        return [], nothing
    told, rest = _by_sets(window) or _by_queues(window, open_ranks)
    return told, {**nothing, **rest}


def _by_queues(
    window: Window, open_ranks: frozenset[int]
) -> tuple[list[Folded], dict[int, list[bytes]]]:
    group = Group()
    for rank in window:
        group.join(rank)
    for rank, lines in window.items():
        group.feed(rank, lines)
    return group.take(open_ranks=open_ranks), group.rest()


def _by_sets(window: Window) -> tuple[list[Folded], dict[int, list[bytes]]] | None:
    """The same up to the last line that all have; None where it is not as simple as that."""
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
        end = count
        mine = []
        for passed, index in enumerate(own):
            anchor = index - passed
            if anchor >= count:
                break
            end += 1
            mine.append(lines[index])
            between.setdefault(anchor, []).append((bit, lines[index]))
        different = set(mine)
        number_alone += len(different)
        alone |= different
        rest[rank] = lines[end:]
    if len(alone) != number_alone:
        return None
    told: list[Folded] = []
    for index, line in enumerate(first):
        if index in between:
            told += between[index]
        told.append((everyone, line))
    return told, rest
