"""Which links between an attempt's nodes are slow: at a small fraction of their peers' speed.

Thresholds are far from what noise does: a slow direction is measured again, and the best counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrun.policy import node_health
from hpcrun.policy.node_health import HealthFinding
from hpcrun.run.check_in import pairing
from hpcrun.run.check_in.pairing import PairRates
from hpcrun.text import size

# Part of the nodes' usual rate below which a link is a fault, and never above so many bytes per
# second; and below which it is a doubt.
FAULT, FAULT_MOST, DOUBT = 0.05, 100e6, 0.2
# Part of the pairs, and their number, above which slow ones are how the fabric is, or how busy the
# nodes' processors are.
_MANY, _MANY_PAIRS = 0.25, 8


class StartRates(PairRates):
    """The rates that were measured at a start, with its own limit."""

    part = DOUBT
    parts: tuple[float, ...] = (FAULT, DOUBT)

    @property
    def limit(self) -> float:
        most = FAULT_MOST if self.part == FAULT else float("inf")
        return min(self.part * self.reference, most)

    def settle(self) -> str:
        """Look for faults alone from now on where doubts are many; return what to say of it."""
        doubtful, pairs = len(self.doubtful_pairs()), len(self.latencies) + len(self.errors)
        if doubtful <= max(_MANY_PAIRS, _MANY * pairs):
            return ""
        self.parts = (FAULT,)
        self.part = FAULT
        return f"{doubtful} of {pairs} pairs have a slow link, too many for a fault of single nodes"


def findings(rates: StartRates, interface: str, nodes: Sequence[str]) -> list[HealthFinding]:
    """Return the findings on these nodes; ``rates`` may have others, such as spares.

    Where no link works at all nobody knows whose fault that is: a firewall, or a network without
    routes, is the site's.
    """
    found: list[HealthFinding] = []
    works = rates.reference > 0
    for part in rates.parts:
        rates.part = part
        named = {one.node for one in found}
        for one in rates.findings():
            if one["kind"] != pairing.LATE and not named & {*one["nodes"]}:
                found += _of(one, interface, is_fault=works and part == FAULT)
    return [one for one in found if one.node in nodes]


def _of(one: dict[str, Any], interface: str, *, is_fault: bool) -> list[HealthFinding]:
    named, rate, usual = one["nodes"], one["rate"], one["reference"]
    error = f": {one['error']}" if one.get("error") else ""
    kind = node_health.SLOW_LINK
    if one["kind"] == pairing.UNREACHED:
        words = f"no other node reaches it over {interface}{error}"
    elif one["kind"] == pairing.SLOW_PAIR:
        kind = node_health.SLOW_PAIR
        carried = f"{size(int(rate))}/s" if rate else "nothing"
        words = f"between {' and '.join(named)}, {interface} carries {carried}"
        words += (f", and {size(int(usual))}/s elsewhere" if usual else "") + error
    else:
        does = "sends" if one["kind"] == pairing.SLOW_SENDER else "receives"
        words = f"it {does} {size(int(rate))}/s over {interface}, its peers {size(int(usual))}/s"
    return [
        HealthFinding(node, kind if is_fault else node_health.SLOWER_LINK, words) for node in named
    ]
