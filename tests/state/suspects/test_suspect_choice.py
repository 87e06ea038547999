"""Which suspect nodes a job leaves out."""

from __future__ import annotations

import time

import pytest

from hpcrun.state.suspects.suspect_choice import choose
from hpcrun.state.suspects.suspect_nodes import SuspectNode

NOW = time.time()
NODES = [f"n{number}" for number in range(1, 21)]


def suspects(*names: str) -> list[SuspectNode]:
    return [SuspectNode(name, "slow", "bad_node", NOW) for name in names]


# Suspect nodes, nodes of the partition, nodes of the job, nodes that it names; left out, and the
# word of the reason why the others are used.
CASES: dict[str, tuple[list[str], int, int, tuple[str, ...], list[str], str]] = {
    "one": (["n3"], 20, 4, (), ["n3"], ""),
    "of another partition": (["x3"], 20, 4, (), [], ""),
    "several": (["n1", "n2", "n3"], 20, 4, (), ["n1", "n2", "n3"], ""),
    "so many stay as the job needs": (["n1", "n2"], 4, 3, (), ["n1"], "needs it"),
    "all nodes are needed": (["n1"], 4, 4, (), [], "needs it"),
    "more than there are": (["n1"], 4, 9, (), [], "needs it"),
    "the job names it": (["n1", "n2"], 20, 2, ("n1", "n2"), [], "names it"),
}


@pytest.mark.parametrize("case", CASES)
def test_choice(case: str) -> None:
    names, size, needed, wanted, out, why = CASES[case]
    found = choose(suspects(*names), NODES[:size], needed, wanted=wanted)
    assert list(found.nodes) == out
    assert all(why in reason and why for _, reason in found.used)
    named = {*names} & {*NODES[:size]}
    assert {one.node for one in (*found.out, *(one for one, _ in found.used))} == named
    assert len(found.told) == len(named)


def test_a_node_that_is_down_now_is_left_out_and_counts_for_no_room() -> None:
    found = choose(suspects("n4", "n1", "n2"), NODES[:4], 2, usable=NODES[:3])
    assert list(found.nodes) == ["n4", "n1"]
    assert [why for _, why in found.used] == ["as the job needs it"]
    assert found.told[0].startswith("left out: n4: slow (until 20")
