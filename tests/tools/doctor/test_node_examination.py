"""Broken nodes are suspect, and forgotten by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state.suspect_nodes import SuspectNodes
from hpcrun.tools.doctor import node_examination
from hpcrun.tools.doctor.node_verdict import BAD, WARNING, NodeTestFinding, NodeVerdict


def verdict(**bad: str) -> NodeVerdict:
    """Nodes whose links are bad."""
    found = [NodeTestFinding((node,), BAD, "slow_link", why) for node, why in bad.items()]
    return NodeVerdict(("n1", *bad), tuple(found))


def test_recorded_and_cleared(tmp_path: Path) -> None:
    (note,) = node_examination.record_suspects(
        tmp_path, verdict(n2="it sends 6 MB/s", n3="no carrier")
    )
    assert note.startswith("suspect for 12 hours: n2, n3; your submissions leave")
    assert {one.node: (one.reason, one.kind) for one in SuspectNodes(tmp_path).read()} == {
        "n2": ("it sends 6 MB/s", "doctor"),
        "n3": ("no carrier", "doctor"),
    }
    assert node_examination.clear_suspects(tmp_path, "n[2-3]") == ["n2", "n3"]
    assert SuspectNodes(tmp_path).read() == []


@pytest.mark.parametrize(
    "finding",
    [
        NodeTestFinding(("n2",), BAD, "storage", "it cannot write to the root"),
        NodeTestFinding(("n2",), BAD, "compiler", "it has no c++"),
        NodeTestFinding(("n2",), BAD, "gemm", "torch computes nothing there"),
        NodeTestFinding(("n2",), BAD, "no_answer", "no answer"),
        NodeTestFinding(("n2",), WARNING, "ecc", "ECC is off"),
        NodeTestFinding(("n2", "n3"), BAD, "slow_link", "between them"),
    ],
    ids=lambda one: f"{one.severity} {one.kind} of {len(one.nodes)}",
)
def test_what_is_no_broken_hardware_writes_nothing(
    tmp_path: Path, finding: NodeTestFinding
) -> None:
    assert node_examination.record_suspects(tmp_path, NodeVerdict(("n2", "n3"), (finding,))) == []
    assert [*tmp_path.iterdir()] == []


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    (note,) = node_examination.record_suspects(tmp_path / "root", verdict(n2="slow"))
    assert note.startswith("not recorded as suspect: ")


def test_nodes_that_are_not_in_it(tmp_path: Path) -> None:
    node_examination.record_suspects(tmp_path, verdict(n2="slow"))
    with pytest.raises(UsageError, match="n4 is not among the suspect nodes; there is n2"):
        node_examination.clear_suspects(tmp_path, "n2,n4")
    with pytest.raises(UsageError, match="accepted are names"):
        node_examination.clear_suspects(tmp_path, "n[5-2]")
