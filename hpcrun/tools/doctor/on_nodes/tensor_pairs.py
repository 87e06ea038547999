"""The pairs of nodes that the tensor test measures by NCCL, over RDMA where that is used. Pure.

TCP says nothing of RDMA, and an all-reduce over all nodes not which of them is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.run.check_in import pairing
from hpcrun.run.check_in.pairing import PairRates

# Part of the others' bus bandwidth below which a pair is slow. Not tried on GPUs.
ENOUGH = 0.7


def rounds(nodes: Sequence[str], each: int) -> list[list[list[int]]]:
    """Return rounds of the ranks of each pair; every node has ``each`` ranks, in order."""
    first = {node: place * each for place, node in enumerate(nodes)}
    return [
        [[first[node] + rank for node in pair for rank in range(each)] for pair in pairs]
        for pairs in pairing.rounds_of(nodes)
    ]


def findings(
    nodes: Sequence[str], ranks: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return which nodes or pairs are slow; ``ranks`` is what those of each node found."""
    rates = PairRates(nodes, enough=ENOUGH)
    names = pairing.rounds_of(nodes)
    for own in ranks.values():
        for number, place, busbw in (row for rank in own for row in rank.get("pairs", ())):
            rates.add(names[int(number)][int(place)], float(busbw), float(busbw), 0.0)
    found = []
    for one in rates.findings():
        # A bandwidth has no direction: a node is slow as a sender and as a receiver.
        if one["kind"] in (pairing.SLOW_SENDER, pairing.SLOW_PAIR):
            found.append({key: one[key] for key in ("nodes", "rate", "reference")})
    return found
