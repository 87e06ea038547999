"""What follows from the check of an attempt's nodes, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.policy import node_health
from hpcrun.policy.node_health import (
    DOUBTS,
    EXCLUDE,
    FAULTS,
    GO_ON,
    HARDWARE,
    OF_SITES,
    REFUSE,
    REPLACE,
    WARN,
    HealthFinding,
    decide,
)
from hpcrun.run.fabric import link_check

NODES = ("n1", "n2", "n3", "n4")
DOWN, GPU, BUSY = node_health.INTERFACE_DOWN, node_health.NO_GPU, node_health.BUSY_GPU
PAIR, SHARED, LOCAL = node_health.SLOW_PAIR, node_health.SHARED_STORAGE, node_health.NOT_WRITABLE


def on(node: str, kind: str = DOWN) -> HealthFinding:
    return HealthFinding(node, kind, f"its {kind}")


def test_every_kind_is_a_fault_or_a_doubt() -> None:
    kinds = {
        value
        for name, value in vars(node_health).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert kinds - {REPLACE, EXCLUDE, REFUSE, WARN, GO_ON} == FAULTS | DOUBTS | OF_SITES
    assert len(FAULTS | DOUBTS | OF_SITES) == len(FAULTS) + len(DOUBTS) + len(OF_SITES)
    assert HARDWARE <= FAULTS | DOUBTS
    assert set(link_check.KINDS) <= FAULTS | DOUBTS


# Findings, nodes, the profile's health, what else is known; the action and the nodes.
TABLE: dict[
    str, tuple[list[HealthFinding], Any, dict[str, Any], dict[str, Any], str, list[str]]
] = {
    "nothing": ([], NODES, {}, {}, GO_ON, []),
    "a spare is there": ([on("n2")], NODES, {}, {"spares": 1}, REPLACE, ["n2"]),
    "no spare": ([on("n2")], NODES, {}, {}, EXCLUDE, ["n2"]),
    "more bad nodes than spares": (
        [on("n2"), on("n3", GPU)],
        *(NODES, {}, {"spares": 1}, EXCLUDE, ["n2", "n3"]),
    ),
    "always a requeue": ([on("n2")], NODES, {"on_fault": EXCLUDE}, {"spares": 1}, EXCLUDE, ["n2"]),
    "refused": ([on("n2")], NODES, {"on_fault": REFUSE}, {"spares": 1}, REFUSE, ["n2"]),
    "warned": ([on("n2")], NODES, {"on_fault": WARN}, {"spares": 1}, GO_ON, []),
    "a doubt is warned of": ([on("n2", BUSY)], NODES, {}, {"spares": 1}, GO_ON, []),
    "a doubt is replaced": (
        [on("n2", BUSY)],
        *(NODES, {"on_doubt": REPLACE}, {"spares": 1}, REPLACE, ["n2"]),
    ),
    "a fault beside a doubt": (
        [on("n2"), on("n3", BUSY)],
        *(NODES, {}, {"spares": 1}, REPLACE, ["n2"]),
    ),
    "a doubt refused beside a fault replaced": (
        [on("n2"), on("n3", BUSY)],
        *(NODES, {"on_doubt": REFUSE}, {"spares": 1}, REFUSE, ["n2", "n3"]),
    ),
    "two findings of one node": (
        [on("n2"), on("n2", GPU)],
        *(NODES, {}, {"spares": 1}, REPLACE, ["n2"]),
    ),
    "all nodes alike": ([on(one) for one in NODES], NODES, {}, {}, GO_ON, []),
    "most nodes alike": ([on(one) for one in NODES[:3]], NODES, {}, {}, GO_ON, []),
    "half of the nodes": ([on(one) for one in NODES[:2]], NODES, {}, {}, EXCLUDE, ["n1", "n2"]),
    "one of two": ([on("n1")], NODES[:2], {}, {}, EXCLUDE, ["n1"]),
    "both nodes of a slow pair": (
        [on("n1", PAIR), on("n2", PAIR)],
        *(NODES[:2], {}, {}, EXCLUDE, ["n1", "n2"]),
    ),
    "alike, and one has something of its own": (
        [*(on(one) for one in NODES), on("n3", GPU)],
        *(NODES, {}, {}, EXCLUDE, ["n3"]),
    ),
    "a node alone needs no fabric": ([on("n1")], NODES[:1], {}, {}, GO_ON, []),
    "a node alone needs its GPUs": ([on("n1", GPU)], NODES[:1], {}, {}, EXCLUDE, ["n1"]),
    "the budget is not spent": ([on("n2")], NODES, {}, {"spent": 2}, EXCLUDE, ["n2"]),
    "the budget is spent": ([on("n2")], NODES, {}, {"spent": 3, "spares": 1}, GO_ON, []),
    "no budget": ([on("n2")], NODES, {"budget": 0}, {"spares": 1}, GO_ON, []),
    "refusing takes no budget": (
        [on("n2")],
        *(NODES, {"on_fault": REFUSE, "budget": 0}, {}, REFUSE, ["n2"]),
    ),
    "no other node": ([on("n2")], NODES, {}, {"can_exclude": lambda nodes: ()}, GO_ON, []),
    "one of two could be excluded": (
        [on("n2"), on("n3")],
        *(NODES, {}, {"can_exclude": lambda nodes: nodes[:1]}, GO_ON, []),
    ),
    "no other node, and a spare": (
        [on("n2")],
        *(NODES, {}, {"spares": 1, "can_exclude": lambda nodes: ()}, REPLACE, ["n2"]),
    ),
    "shared storage is no node's fault": (
        [on("n2", SHARED)],
        *(NODES, {"on_doubt": EXCLUDE, "on_fault": EXCLUDE}, {"spares": 1}, GO_ON, []),
    ),
    "shared storage, though its kind is refused": (
        [on("n2", SHARED)],
        *(NODES, {"on_doubt": REFUSE, "on_fault": REFUSE}, {}, GO_ON, []),
    ),
    "shared storage beside a fault": ([on("n2"), on("n3", SHARED)], NODES, {}, {}, EXCLUDE, ["n2"]),
    "of a profile that knows no health": ([on("n2")], NODES, {}, {"spares": 9}, REPLACE, ["n2"]),
}


@pytest.mark.parametrize("case", TABLE)
def test_decision(case: str) -> None:
    findings, nodes, health, known, action, bad = TABLE[case]
    found = decide(findings, nodes, health, **known)
    assert (found.action, list(found.nodes)) == (action, bad)
    assert found.reason
    assert bool(found.message) == bool(bad)
    assert all(f"node {node}: its " in found.message for node in bad)


# Findings -> the nodes that may be suspect for hours.
BROKEN: dict[str, tuple[list[HealthFinding], list[str]]] = {
    "an interface": ([on("n1")], ["n1"]),
    "GPUs": ([on("n1", GPU), on("n2", node_health.BROKEN_GPU)], ["n1", "n2"]),
    "memory errors, which are only warned of": ([on("n1", node_health.ECC_ERRORS)], []),
    "a link": ([on("n1", node_health.SLOW_LINK)], ["n1"]),
    "one of two nodes, nobody knows which": ([on("n1", PAIR), on("n2", PAIR)], []),
    "its own disk is full": ([on("n1", LOCAL)], []),
    "GPUs, and its disk": ([on("n1", LOCAL), on("n1", GPU)], ["n1"]),
    "shared storage": ([on("n1", SHARED)], []),
    "most nodes alike": ([on(one) for one in NODES[:3]], []),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize(
    "more",
    [{}, {"spares": 4}, {"health": {"on_fault": REFUSE}}],
    ids=["exclude", "spare", "refuse"],
)
def test_broken_hardware(case: str, more: dict[str, Any]) -> None:
    findings, nodes = BROKEN[case]
    found = decide(findings, NODES, more.get("health", {}), spares=more.get("spares", 0))
    assert list(found.hardware) == nodes
    assert all("disk" not in why and "not_writable" not in why for why in found.hardware.values())


def test_memory_errors_that_are_acted_on_are_of_hardware() -> None:
    found = decide([on("n1", node_health.ECC_ERRORS)], NODES, {"on_doubt": EXCLUDE})
    assert found.hardware == {"n1": "its ecc_errors"}


def test_what_is_refused_names_the_key() -> None:
    fault = decide([on("n2")], NODES, {"on_fault": REFUSE})
    assert fault.reason == "health.on_fault is refuse"
    doubt = decide([on("n2", BUSY)], NODES, {"on_doubt": REFUSE})
    assert doubt.reason == "health.on_doubt is refuse"


def test_a_misjudgement_ends_after_its_budget() -> None:
    """However often it is asked, each time on other nodes."""
    spent = 0
    for turn in range(50):
        nodes = [f"n{turn}-{place}" for place in range(4)]
        spent += decide([on(nodes[0])], nodes, {}, spent=spent).action != GO_ON
    assert spent == 3


def test_many_findings_are_told_in_short() -> None:
    nodes = [f"n{number}" for number in range(100)]
    found = decide([on(node) for node in nodes[:40]], nodes, {})
    assert len(found.nodes) == 40
    assert found.message.endswith("; and 36 more")
