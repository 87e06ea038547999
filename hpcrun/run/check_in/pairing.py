"""Which nodes measure each other when, and which of them is slow. Pure.

A ring takes two rounds for an even number of nodes and three for an odd one; in a last round nodes
meet that are far from each other, so that each has met three. A slow direction is measured again,
as noise only ever makes it slower. What is still in doubt meets nodes that are known to be good. A
direction is slow by its sender or by its receiver: whoever does as well with another peer is not
the reason. The check at a job's start (`hpcrun.run.check_in`) has nodes meet in the ring alone.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Pair = tuple[str, str]

# Part of the reference below which a direction is slow: without a baseline the reference is the
# upper quartile of the nodes' best rates, as TCP alone makes some a third slower.
OF_OTHERS, OF_BASELINE = 0.35, 0.9
# Round trips: so many times the median, and so many seconds more.
_LATE_TIMES, _LATE_SECONDS = 4.0, 0.0005
SLOW_SENDER, SLOW_RECEIVER, UNREACHED = "slow_sender", "slow_receiver", "unreached"
SLOW_PAIR, LATE = "slow_pair", "late"


def rounds_of(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of pairs in which each node meets its two neighbours, and one from afar.

    Without the last round every way might have a slow end where half of the nodes are slow.
    """
    half = len(nodes) // 2
    far = [(nodes[i], nodes[i + half]) for i in range(half)] if len(nodes) > 3 else []
    return [*ring(nodes), *([far] if far else [])]


def ring(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of pairs in which each node meets its two neighbours in the ring."""
    if len(nodes) < 2:
        return []
    count = len(nodes)
    pairs = [(nodes[i], nodes[(i + 1) % count]) for i in range(count if count > 2 else 1)]
    even = count - count % 2
    rounds = (pairs[0:even:2], pairs[1:even:2], pairs[even:])
    return [one for one in rounds if one]


@dataclass
class PairRates:
    """All that was measured so far; ``baseline`` is the site's rate in bytes per second."""

    nodes: Sequence[str]
    baseline: float | None = None
    rates: dict[Pair, float] = field(default_factory=dict)
    """Sender and receiver -> bytes per second, the best of all times; 0 if it failed."""
    latencies: dict[Pair, float] = field(default_factory=dict)
    """Seconds of a round trip, by the pair in alphabetical order."""
    errors: dict[Pair, str] = field(default_factory=dict)
    """Why a pair could not be measured at all."""
    enough: float = OF_OTHERS
    """Part of the others' rate below which a direction is slow, without a baseline."""

    def add(self, pair: Pair, sends: float, receives: float, latency: float) -> None:
        """Take in a measurement of the first of a pair."""
        one, other = pair
        for way, rate in (((one, other), sends), ((other, one), receives)):
            self.rates[way] = max(self.rates.get(way, 0.0), rate)
        key = _sorted(pair)
        self.latencies[key] = min(self.latencies.get(key, float("inf")), latency)
        self.errors.pop(key, None)

    def fail(self, pair: Pair, why: str) -> None:
        """Take in that the first of a pair could not measure."""
        for way in (pair, pair[::-1]):
            self.rates.setdefault(way, 0.0)
        if _sorted(pair) not in self.latencies:
            self.errors[_sorted(pair)] = why

    @property
    def reference(self) -> float:
        """The usual rate: the baseline, or the upper quartile of each node's best; 0 without any.

        Noise makes links slower and never faster, so fast ones tell what the fabric can do.
        """
        if self.baseline:
            return self.baseline
        best = dict.fromkeys(self.nodes, 0.0)
        for way, rate in self.rates.items():
            for node in {*way} & best.keys():
                best[node] = max(best[node], rate)
        working = sorted(rate for rate in best.values() if rate > 0)
        return working[3 * (len(working) - 1) // 4] if working else 0.0

    @property
    def limit(self) -> float:
        """The rate below which a direction is slow."""
        return self.reference * (OF_BASELINE if self.baseline else self.enough)

    def slow(self) -> list[Pair]:
        """Return the directions that are slow, or failed."""
        limit = self.limit
        return [way for way, rate in self.rates.items() if rate < limit or not rate]

    def doubtful_pairs(self) -> list[Pair]:
        """Return the pairs with a slow direction, each once."""
        return sorted({_sorted(way) for way in self.slow()})

    def _does_well(self) -> tuple[set[str], set[str]]:
        """Return the nodes that send well to some peer, and those that receive well from one."""
        good = self.rates.keys() - {*self.slow()}
        return {way[0] for way in good}, {way[1] for way in good}

    def further_round(self) -> list[Pair]:
        """Return pairs of nodes in doubt and peers that they have not met, the best peers first."""
        senders, receivers = self._does_well()
        well = senders & receivers
        doubtful = [node for node in self.nodes if node not in well]
        peers = [node for node in self.nodes if node in well]
        peers += doubtful
        # A slow direction to a peer that does well with others tells who is the reason.
        unsettled = {way[0] for way in self.slow() if way[1] not in receivers}
        unsettled |= {way[1] for way in self.slow() if way[0] not in senders}
        pairs: list[Pair] = []
        busy: set[str] = set()
        for node in doubtful:
            if node in busy or node not in unsettled:
                continue
            for peer in peers:
                if peer != node and peer not in busy and (node, peer) not in self.rates:
                    pairs.append((node, peer))
                    busy |= {node, peer}
                    break
        return pairs

    def findings(self) -> list[dict[str, Any]]:
        """Return what is wrong: ``kind``, ``nodes``, ``rate`` and ``reference``.

        One node where it alone is the reason, two where it is one of them, or the way between.
        """
        senders, receivers = self._does_well()
        slow, usual = self.slow(), self.reference
        found: list[dict[str, Any]] = []
        alone = self._alone()
        for node in alone:
            found.append(self._finding(UNREACHED, (node,), 0.0, usual))
        apart, named = {*alone}, {*alone}
        for kind, well, place in ((SLOW_SENDER, senders, 0), (SLOW_RECEIVER, receivers, 1)):
            others = receivers if place == 0 else senders
            ways_of = defaultdict(list)
            for way in slow:
                if not {*way} & apart:
                    ways_of[way[place]].append(way)
            for node in self.nodes:
                ways = ways_of[node]
                explained = [way for way in ways if way[1 - place] in others]
                if node not in well and explained:
                    best = max(self.rates[way] for way in ways)
                    found.append(self._finding(kind, (node,), best, usual))
                    named.add(node)
        for pair in self.doubtful_pairs():
            if not set(pair) & named:
                worst = min(self.rates[way] for way in (pair, pair[::-1]) if way in self.rates)
                found.append(self._finding(SLOW_PAIR, pair, worst, usual))
        return [*found, *self._late()]

    def _alone(self) -> list[str]:
        """Return the nodes that no other reaches, and that have met one which others reach."""
        reached = {node for way, rate in self.rates.items() if rate for node in way}
        lonely = {
            node for way in self.rates if {*way} & reached for node in way if node not in reached
        }
        return [node for node in self.nodes if node in lonely]

    def _late(self) -> Iterable[dict[str, Any]]:
        """Return the nodes that answer late whoever asks."""
        if len(self.latencies) < 3:
            return
        usual = statistics.median(self.latencies.values())
        limit = max(_LATE_TIMES * usual, usual + _LATE_SECONDS)
        best: dict[str, float] = {}
        for pair, latency in self.latencies.items():
            for node in pair:
                best[node] = min(best.get(node, latency), latency)
        for node in self.nodes:
            if (latency := best.get(node, 0.0)) > limit:
                yield {"kind": LATE, "nodes": [node], "latency": latency, "reference": usual}

    def _finding(
        self, kind: str, nodes: Collection[str], rate: float, usual: float
    ) -> dict[str, Any]:
        errors = [why for pair, why in self.errors.items() if set(nodes) & set(pair)]
        found = {"kind": kind, "nodes": [*nodes], "rate": rate, "reference": usual}
        return {**found, "error": errors[0]} if errors and not rate else found


def _sorted(pair: Pair) -> Pair:
    one, other = sorted(pair)
    return one, other
