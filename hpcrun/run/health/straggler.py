"""Which rank the others wait for, step after step: decided from the ranks' pulses alone.

A rank that is slower than its peers is seldom slow to look at: all steps take as long as its own.
But at the end of each the others wait for it in a collective, where their main threads are found
whenever somebody looks, and its own is not. (Where a collective returns before it is done, as on
GPUs, what is found is a rank that is slow to start its work: its data, its processor.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from hpcrun.run.health.progress import RankProgress

# A part of the time: so many looks (one a second) at least, and so many finished steps.
LOOKS = 10
STEPS = 2
# Of the newest parts, so many have to agree: a rank that evaluates alone now and then is none.
PARTS, AGREE = 6, 5
# Shares of the looks at which each of the others waits at least, and the straggler at most.
OTHERS_WAIT, IT_WAITS = 0.25, 0.05


@dataclass(frozen=True)
class Straggler:
    """A rank that holds up the others.

    Attributes
    ----------
    rank
        Which.
    waits, others_wait
        The share of the time that it waits for others, and that the least of the others waits.
    """

    rank: int
    waits: float
    others_wait: float


class StragglerDetector:
    """The ranks of one attempt, from its beginning."""

    def __init__(self) -> None:
        self._from: dict[int, RankProgress] = {}
        self._parts: deque[Straggler | None] = deque(maxlen=PARTS)
        self._told: int | None = None

    def update(self, pulses: Mapping[int, RankProgress]) -> Straggler | None:
        """Take in what the agents have read last; a straggler that was not told of before."""
        if pulses.keys() != self._from.keys():
            self._from = dict(pulses)
            return None
        pairs = [(self._from[rank], now) for rank, now in pulses.items()]
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
        if newest is None or ranks.count(newest.rank) < AGREE or newest.rank == self._told:
            return None
        self._told = newest.rank
        return newest


def _of(then: Mapping[int, RankProgress], now: Mapping[int, RankProgress]) -> Straggler | None:
    """The one rank that does not wait while all others do."""
    if len(now) < 2:
        return None
    shares = {
        rank: (found.waits - then[rank].waits) / (found.looks - then[rank].looks)
        for rank, found in now.items()
    }
    least, second = sorted(shares, key=lambda rank: shares[rank])[:2]
    if shares[least] > IT_WAITS or shares[second] < OTHERS_WAIT:
        return None
    return Straggler(least, round(shares[least], 2), round(shares[second], 2))
