"""Which suspect nodes a job leaves out."""

from __future__ import annotations

import os
import time

import pytest

from hpcrun.policy.suspect_choice import choose
from hpcrun.state.suspects.suspect_nodes import SuspectEntry

MINE, ALICE, BOB, ROOT = max(os.geteuid(), 1000), 2001, 2002, 0
NOW = time.time()
NODES = [f"n{number}" for number in range(1, 21)]


@pytest.fixture(autouse=True)
def _ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: MINE)


def entry(node: str, uid: int = ALICE) -> SuspectEntry:
    return SuspectEntry(node, "slow", f"user{uid}", uid, NOW, NOW + 999, "slow_link")


# Entries (node, author), nodes of the partition, nodes of the job, nodes that it names; left out,
# and the word of the reason why the others are used.
CASES = {
    "another's entry": ([("n3", ALICE)], 20, 4, (), ["n3"], ""),
    "of another partition": ([("x3", ALICE)], 20, 4, (), [], ""),
    "a tenth of the nodes": (
        [(f"n{number}", ALICE) for number in range(1, 9)],
        *(20, 4, (), ["n1", "n2"], "at most 10%"),
    ),
    "of four nodes one": ([("n1", ALICE), ("n2", BOB)], 4, 2, (), ["n1"], "at most 10%"),
    "two authors count for more": (
        [("n1", ALICE), ("n2", ALICE), ("n2", BOB), ("n3", ALICE)],
        *(4, 2, (), ["n2"], "at most 10%"),
    ),
    "my own beyond the share": (
        [("n1", MINE), ("n2", MINE), ("n3", MINE), ("n4", ALICE)],
        *(20, 4, (), ["n1", "n2", "n3", "n4"], ""),
    ),
    "root's as mine": ([("n1", ROOT), ("n2", ROOT)], 4, 2, (), ["n1", "n2"], ""),
    "mine and another's of one node": ([("n1", ALICE), ("n1", MINE)], 4, 2, (), ["n1"], ""),
    "so many stay as the job needs": ([("n1", MINE), ("n2", MINE)], 4, 3, (), ["n1"], "needs it"),
    "all nodes are needed": ([("n1", ALICE)], 4, 4, (), [], "needs it"),
    "more than there are": ([("n1", ALICE)], 4, 9, (), [], "needs it"),
    "the job names it": ([("n1", ALICE), ("n2", MINE)], 20, 2, ("n1", "n2"), [], "names it"),
}


@pytest.mark.parametrize("case", CASES)
def test_choice(case: str) -> None:
    entries, size, needed, wanted, out, why = CASES[case]
    found = choose([entry(node, uid) for node, uid in entries], NODES[:size], needed, wanted=wanted)
    assert list(found.nodes) == out
    assert all(why in reason and why for _, reason in found.used)
    named = {node for node, _ in entries if node in NODES[:size]}
    assert {one.node for one in (*found.out, *(one for one, _ in found.used))} == named
    assert len(found.told) == len(named)


def test_another_user_cannot_take_a_partition() -> None:
    entries = [entry(node, uid) for uid in range(2000, 2050) for node in NODES]
    assert len(choose(entries, NODES, 1).out) == 2
    assert len(choose(entries, NODES, 1, share=0.5).out) == 10
    assert choose(entries, NODES, 20).out == ()


def test_a_node_that_is_down_now_is_left_out_and_counts_for_no_room() -> None:
    mine = [entry(node, MINE) for node in ("n4", "n1", "n2")]
    found = choose(mine, NODES[:4], 2, usable=NODES[:3])
    assert list(found.nodes) == ["n4", "n1"]
    assert [why for _, why in found.used] == ["as the job needs it"]


def test_what_is_told_names_author_and_expiry() -> None:
    told = choose([entry("n1")], NODES[:4], 2).told
    assert len(told) == 1
    assert told[0].startswith("left out: n1: slow (by user2001, until 20")
