"""Straggler detection: finds the rank that the others wait for.

A straggler's own steps take as long as everybody's. But at the end of each step the others wait for
it in a collective, where samples of their main threads find them and never the straggler. (On GPUs,
where a collective returns before it is done, this finds a rank that is slow to start its work: its
data, its processor.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from hpcrun.run.health.progress import RankProgress

# An interval has at least so many samples (one a second) and finished steps.
LOOKS = 10
STEPS = 2
# So many of the newest intervals have to agree, since a rank may evaluate alone now and then.
PARTS, AGREE = 6, 5
# Where the others do little but wait, as they do for a rank that is ten times slower, so many in a
# row are enough, which are half a minute: a rank that evaluates alone is found in one.
CLEAR_WAIT, CLEAR = 0.75, 3
# The least share of samples in which each other rank waits, and the most of the straggler.
OTHERS_WAIT, IT_WAITS = 0.25, 0.05


@dataclass(frozen=True)
class Straggler:
    """A rank that holds up the others, with the shares of the time that ranks wait."""

    rank: int
    waits: float
    others_wait: float
    """The least share of any other rank."""
    loads: float = 0.0
    """The share in which it is in a loader of data."""


class StragglerDetector:
    """The ranks of one attempt, from its beginning."""

    def __init__(self) -> None:
        self._from: dict[int, RankProgress] = {}
        self._parts: deque[Straggler | None] = deque(maxlen=PARTS)
        self._reported: int | None = None

    def update(self, pulses: Mapping[int, RankProgress]) -> Straggler | None:
        """Add the ranks' newest progress; return a straggler that was not reported before."""
        is_same = pulses.keys() == self._from.keys()
        pairs = [(self._from[rank], now) for rank, now in pulses.items()] if is_same else []
        if not pairs or any(now.pid != then.pid for then, now in pairs):
            self._from = dict(pulses)
            return None
        if any(
            now.looks - then.looks < LOOKS or now.step - then.step < STEPS for then, now in pairs
        ):
            return None
        self._parts.append(_of(self._from, pulses))
        self._from = dict(pulses)
        found = [part for part in self._parts if part is not None]
        ranks = [part.rank for part in found]
        newest = found[-1] if found else None
        if newest is None or newest.rank == self._reported:
            return None
        clear = [
            part is not None and part.rank == newest.rank and part.others_wait >= CLEAR_WAIT
            for part in [*self._parts][-CLEAR:]
        ]
        if ranks.count(newest.rank) < AGREE and not (len(clear) == CLEAR and all(clear)):
            return None
        self._reported = newest.rank
        return newest


def _of(then: Mapping[int, RankProgress], now: Mapping[int, RankProgress]) -> Straggler | None:
    """Return the one rank that does not wait while all others do."""
    if len(now) < 2:
        return None
    shares = {
        rank: (found.waits - then[rank].waits) / (found.looks - then[rank].looks)
        for rank, found in now.items()
    }
    least, second = sorted(shares, key=lambda rank: shares[rank])[:2]
    if shares[least] > IT_WAITS or shares[second] < OTHERS_WAIT:
        return None
    first, last = then[least], now[least]
    loads = (last.loads - first.loads) / (last.looks - first.looks)
    return Straggler(least, *(round(one, 2) for one in (shares[least], shares[second], loads)))
