"""Broken nodes are suspect, and forgotten by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.doctor import suspect_list
from hpcrun.errors import UsageError
from hpcrun.state.suspects.suspect_nodes import SuspectNodes


def test_recorded_and_cleared(tmp_path: Path) -> None:
    (note,) = suspect_list.record(tmp_path, {"n2": "it sends 6 MB/s", "n3": "no carrier"})
    assert note.startswith("suspect for 12 hours: n2, n3; your submissions leave")
    assert {one.node: (one.reason, one.kind) for one in SuspectNodes(tmp_path).read()} == {
        "n2": ("it sends 6 MB/s", "doctor"),
        "n3": ("no carrier", "doctor"),
    }
    assert suspect_list.clear(tmp_path, "n[2-3]") == ["n2", "n3"]
    assert SuspectNodes(tmp_path).read() == []


def test_nothing_broken_writes_nothing(tmp_path: Path) -> None:
    assert suspect_list.record(tmp_path, {}) == []
    assert [*tmp_path.iterdir()] == []


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    (note,) = suspect_list.record(tmp_path / "root", {"n2": "slow"})
    assert note.startswith("not recorded as suspect: ")


def test_nodes_that_are_not_in_it(tmp_path: Path) -> None:
    suspect_list.record(tmp_path, {"n2": "slow"})
    with pytest.raises(UsageError, match="n4 is not among the suspect nodes; there is n2"):
        suspect_list.clear(tmp_path, "n2,n4")
    with pytest.raises(UsageError, match="accepted are names"):
        suspect_list.clear(tmp_path, "n[5-2]")
