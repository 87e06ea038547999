"""The record of a user's suspect nodes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.state import permissions
from hpcrun.state.suspect_nodes import HOURS, SuspectNode, SuspectNodes, choose

NOW = time.time()
LATER = NOW + HOURS * 3600 + 1


@pytest.fixture
def nodes(tmp_path: Path) -> SuspectNodes:
    return SuspectNodes(tmp_path / "root")


def names(nodes: SuspectNodes, now: float = NOW) -> list[str]:
    return [one.node for one in nodes.read(now)]


def test_a_node_is_suspect_for_hours(nodes: SuspectNodes) -> None:
    assert nodes.read() == []
    nodes.record("node07", "ib0 has no carrier", "bad_node", now=NOW)
    (one,) = nodes.read(NOW + 60)
    assert (one.node, one.reason, one.kind) == ("node07", "ib0 has no carrier", "bad_node")
    assert one.told.startswith("node07: ib0 has no carrier (until 20")
    assert HOURS <= 12
    assert names(nodes, LATER) == []
    assert [path.name for path in nodes.file.parent.iterdir()] == [f"{os.geteuid()}.json"]


def test_what_is_no_proof_counts_once_it_was_seen_twice(nodes: SuspectNodes) -> None:
    nodes.record("n1", "it did not answer any more", "node_failure", certain=False, now=NOW)
    assert names(nodes) == []
    nodes.record("n2", "it did not answer any more", "node_failure", certain=False, now=NOW)
    assert names(nodes) == []
    nodes.record("n1", "it did not answer any more", "node_failure", certain=False, now=NOW + 1)
    assert names(nodes) == ["n1"]
    # The first times are forgotten by then.
    nodes.record("n2", "it did not answer any more", "node_failure", certain=False, now=LATER)
    assert names(nodes, LATER) == []


def test_the_newest_of_a_node_counts(nodes: SuspectNodes) -> None:
    for node, reason, when in (("n1", "slow", 3), ("n2", "gone", 2), ("n1", "down", 1)):
        nodes.record(node, reason, "bad_node", now=NOW - when)
    assert [(one.node, one.reason) for one in nodes.read(NOW)] == [("n1", "down"), ("n2", "gone")]


def test_nodes_are_forgotten_by_hand(nodes: SuspectNodes) -> None:
    for node in ("n1", "n2", "n3"):
        nodes.record(node, "slow", "doctor")
    assert nodes.forget(["n2", "n3", "other"]) == ["n2", "n3"]
    assert nodes.forget(["n2"]) == []
    assert names(nodes, time.time()) == ["n1"]


@pytest.mark.parametrize("name", ["", "-w", "n1;rm", "n1,n2", "n[1-3]", "n1\n", "a" * 65, "n 1"])
def test_only_a_nodes_name_is_recorded(nodes: SuspectNodes, name: str) -> None:
    with pytest.raises(HpcrunError, match="not the name of a node"):
        nodes.record(name, "x", "bad_node")


def test_a_reason_is_one_short_line_without_escapes(nodes: SuspectNodes) -> None:
    nodes.record("n1", "bad\n\x1b[31mred" + "x" * 5000, "bad_node", now=NOW)
    (one,) = nodes.read(NOW)
    assert "\n" not in one.reason
    assert "\x1b" not in one.reason
    assert len(one.reason) < 300


def test_what_nobody_of_us_wrote_is_passed_over(nodes: SuspectNodes) -> None:
    nodes.record("n1", "slow", "bad_node", now=NOW)
    (good,) = json.loads(nodes.file.read_text())
    bad: list[Any] = [
        *(None, 7, [], {}, {**good, "node": None}, {**good, "node": "--exclude"}),
        *({**good, "time": NOW + 1e6}, {**good, "time": "x"}, {**good, "certain": "x"}),
    ]
    nodes.file.write_text(json.dumps(bad))
    assert names(nodes) == []
    for text in ("", "{", "7", "[" * 100_000):
        nodes.file.write_text(text)
        assert names(nodes) == []
    nodes.record("n3", "slow", "bad_node", now=NOW)
    assert names(nodes) == ["n3"]


def test_a_strangers_file_is_not_read(nodes: SuspectNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.record("n1", "slow", "bad_node", now=NOW)
    monkeypatch.setattr(permissions, "owner", lambda _: os.geteuid() + 1)
    assert names(nodes) == []


def test_the_file_stays_small(nodes: SuspectNodes) -> None:
    for number in range(600):
        nodes.record(f"n{number}", "y" * 190, "bad_node", now=NOW)
    assert nodes.file.stat().st_size < 1 << 18
    assert "n599" in names(nodes)


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / ".hpcrun").write_text("")
    with pytest.raises(HpcrunError, match="record of suspect nodes cannot be written"):
        SuspectNodes(tmp_path).record("n1", "slow", "bad_node")


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
