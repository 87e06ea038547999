"""Bad nodes go into the record of suspect nodes, and are cleared by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.doctor import suspect_list
from hpcrun.errors import UsageError
from hpcrun.state.suspects import suspect_nodes
from hpcrun.state.suspects.suspect_nodes import SuspectEntry, SuspectNodes, SuspectReading


def test_recorded_and_cleared(tmp_path: Path) -> None:
    (note,) = suspect_list.record({}, tmp_path, {"n2": "it sends 6 MB/s", "n3": "no carrier"})
    assert note.startswith("recorded as suspect for 2 days: n2, n3; your submissions leave")
    entries = SuspectNodes.of({}, tmp_path).read().entries
    assert {one.node: (one.reason, one.kind) for one in entries} == {
        "n2": ("it sends 6 MB/s", "doctor"),
        "n3": ("no carrier", "doctor"),
    }
    assert suspect_list.clear({}, tmp_path, "n[2-3]") == (["n2", "n3"], {})
    assert SuspectNodes.of({}, tmp_path).read().entries == ()


def test_nothing_bad_writes_nothing(tmp_path: Path) -> None:
    assert suspect_list.record({}, tmp_path, {}) == []
    assert [*tmp_path.iterdir()] == []


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    cluster = {"suspects": {"directory": str(tmp_path / "gone"), "days": 1.0}}
    (note,) = suspect_list.record(cluster, tmp_path, {"n2": "slow"})
    assert note.startswith("not recorded as suspect: ")
    assert "gone" in note


def test_nodes_that_are_not_in_it(tmp_path: Path) -> None:
    suspect_list.record({}, tmp_path, {"n2": "slow"})
    with pytest.raises(UsageError, match="n4 is not among the suspect nodes; there is n2"):
        suspect_list.clear({}, tmp_path, "n2,n4")
    with pytest.raises(UsageError, match="accepted are names"):
        suspect_list.clear({}, tmp_path, "n[5-2]")


def test_what_others_say_stays_and_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SuspectEntry("n2", "slow", "bob", 4711, 1.0, 1e12)
    monkeypatch.setattr(SuspectNodes, "read", lambda *_: SuspectReading((entry,)))
    trusted: list[str] = []
    monkeypatch.setattr(SuspectNodes, "trust", lambda _, nodes: trusted.extend(nodes))
    assert suspect_list.clear({}, tmp_path, "n2") == ([], {"n2": "bob"})
    assert trusted == ["n2"]
    assert suspect_nodes.DAYS > 0
