"""What follows from the check of an attempt's nodes: a pure decision, tested as a table.

A finding is of one node, and a fault or a doubt by its kind; the profile's ``health`` says what
follows from each. What most nodes have alike is no node's fault: the site is so, or the check is
wrong. Nor is shared storage, which is only told. A submission does without nodes ``health.budget``
times, so that no misjudgement requeues a run for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hpcrun.shared_dataclass import asdict, dataclass, field
from hpcrun.text import listed, plural

# Kinds of findings. The first are those of `hpcrun.run.fabric.link_check`.
PORT_DOWN, NO_SUBNET_MANAGER = "down", "no_subnet_manager"
SLOW_PORT, UNREADABLE, NO_PORT, DIFFERS = "slow", "unreadable", "no_port", "differs"
INTERFACE_DOWN = "interface_down"
NO_GPU, BROKEN_GPU, BUSY_GPU, ECC_ERRORS = "no_gpu", "broken_gpu", "busy_gpu", "ecc_errors"
NOT_WRITABLE, LITTLE_ROOM, CLOCK = "not_writable", "little_room", "clock"
SHARED_STORAGE = "shared_storage"
SLOW_LINK, SLOW_PAIR, SLOWER_LINK = "slow_link", "slow_pair", "slower_link"

_OF_FABRIC = {PORT_DOWN, NO_SUBNET_MANAGER, INTERFACE_DOWN}
_OF_PORTS = {SLOW_PORT, UNREADABLE, NO_PORT, DIFFERS}
FAULTS = frozenset({*_OF_FABRIC, NO_GPU, BROKEN_GPU, NOT_WRITABLE, SLOW_LINK, SLOW_PAIR})
DOUBTS = frozenset({*_OF_PORTS, BUSY_GPU, ECC_ERRORS, LITTLE_ROOM, CLOCK, SLOWER_LINK})
# What is no node's fault, whatever the profile says.
OF_SITES = frozenset({SHARED_STORAGE})
# What is broken about a node itself: it may be recorded as suspect.
HARDWARE = frozenset({*_OF_FABRIC, NO_GPU, BROKEN_GPU, ECC_ERRORS, SLOW_LINK})
# Findings that matter between nodes alone.
_BETWEEN_NODES = {*_OF_FABRIC, *_OF_PORTS, SLOW_LINK, SLOW_PAIR, SLOWER_LINK}

# Values of ``health.on_fault`` and ``on_doubt``.
REPLACE, EXCLUDE, REFUSE, WARN = "replace", "exclude", "refuse", "warn"
# What is done.
GO_ON = "go_on"

DEFAULTS: Mapping[str, Any] = {"check": True, "on_fault": REPLACE, "on_doubt": WARN, "budget": 3}
_SHOWN = 4


@dataclass(frozen=True)
class HealthFinding:
    """What is wrong with a node."""

    node: str
    kind: str
    message: str
    """A sentence without end, which does not name the node."""

    def to_data(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class HealthDecision:
    """What is done about an attempt's nodes before its ranks are started."""

    action: str
    """``go_on``; ``replace`` (by spares, in this allocation); ``exclude`` (the job is requeued and
    does without them); ``refuse``."""
    reason: str
    """Why, as a sentence without end."""
    nodes: tuple[str, ...] = ()
    """The nodes that the attempt cannot use; none if it goes on."""
    message: str = ""
    """What is wrong with them."""
    hardware: Mapping[str, str] = field(default_factory=dict)
    """Those of them whose hardware is broken -> what is wrong with it."""


def decide(
    findings: Sequence[HealthFinding],
    nodes: Sequence[str],
    health: Mapping[str, Any],
    *,
    spares: int = 0,
    spent: int = 0,
    can_exclude: Callable[[Sequence[str]], Collection[str]] = lambda nodes: nodes,
) -> HealthDecision:
    """Decide about an attempt on ``nodes``, of which alone the findings are.

    ``health`` is the profile's block, or what is there of it. ``spares`` nodes of the allocation
    have no finding, and could take a place; ``spent`` times this submission of the run did without
    nodes before. ``can_exclude`` is asked, only where that matters, which nodes a requeue could do
    without.
    """
    policy = {**DEFAULTS, **health}
    alike = common_kinds(findings, nodes)
    wanted: dict[str, str] = {}
    counted = [
        one
        for one in findings
        if one.kind not in alike
        and one.kind not in OF_SITES
        and (len(nodes) > 1 or one.kind not in _BETWEEN_NODES)
    ]
    for one in counted:
        response = str(policy["on_fault" if one.kind in FAULTS else "on_doubt"])
        if _RANK.index(response) > _RANK.index(wanted.get(one.node, WARN)):
            wanted[one.node] = response
    bad = tuple(node for node in nodes if node in wanted)
    if not bad:
        return HealthDecision(GO_ON, _why_nothing(findings, alike, counted))
    message = summary(counted, bad)
    broken = {
        node: "; ".join(own)
        for node in bad
        if (own := [one.message for one in counted if one.node == node and one.kind in HARDWARE])
    }
    if REFUSE in wanted.values():
        keys = _keys(counted, wanted, policy, REFUSE)
        return HealthDecision(REFUSE, f"{keys} is {REFUSE}", bad, message, broken)
    if spent >= int(policy["budget"]):
        did = plural(spent, "time")
        return HealthDecision(
            GO_ON, f"the run did without nodes {did} already; health.budget is {policy['budget']}"
        )
    if EXCLUDE not in wanted.values() and len(bad) <= spares:
        reason = "a spare takes its place" if len(bad) == 1 else "spares take their places"
        return HealthDecision(REPLACE, reason, bad, message, broken)
    if not {*bad}.issubset(can_exclude(bad)):
        return HealthDecision(GO_ON, "the job cannot do without: there is no other node for it")
    reason = f"the job is requeued without {listed(bad, 8)}"
    return HealthDecision(EXCLUDE, reason, bad, message, broken)


def common_kinds(findings: Sequence[HealthFinding], nodes: Sequence[str]) -> frozenset[str]:
    """Return the kinds that more than half of the nodes have, of at least two.

    The two nodes of a slow pair are never alike: one direction is slower than others were.
    """
    having: dict[str, set[str]] = {}
    for one in findings:
        having.setdefault(one.kind, set()).add(one.node)
    half = len(nodes) / 2
    common = (kind for kind, found in having.items() if len(nodes) > 1 and len(found) > half)
    return frozenset(common) - {SLOW_PAIR}


def summary(findings: Sequence[HealthFinding], nodes: Collection[str]) -> str:
    """Return the findings of some nodes in one line."""
    words = [f"node {one.node}: {one.message}" for one in findings if one.node in nodes]
    return listed(words, _SHOWN, "; ", "; and {} more")


_RANK = (WARN, REPLACE, EXCLUDE, REFUSE)


def _why_nothing(
    findings: Sequence[HealthFinding], alike: Collection[str], counted: Sequence[HealthFinding]
) -> str:
    if not findings:
        return "nothing is wrong"
    if counted:
        return "that is only warned of"
    if all(one.kind in OF_SITES for one in findings):
        return "shared storage is no node's fault"
    if alike:
        return "most nodes have it alike, so it is no node's fault"
    return "there is no other node to reach"


def _keys(
    findings: Sequence[HealthFinding],
    wanted: Mapping[str, str],
    policy: Mapping[str, Any],
    kind: str,
) -> str:
    keys = {
        "health.on_fault" if one.kind in FAULTS else "health.on_doubt"
        for one in findings
        if wanted.get(one.node) == kind
    }
    return " and ".join(sorted(key for key in keys if policy[key.partition(".")[2]] == kind))
