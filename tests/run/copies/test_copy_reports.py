"""What nodes say of their staging is checked, told and put together."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from hpcrun.run.copies.copy_reports import CopyReports
from hpcrun.run.copies.node_copies import NodeCopyReport
from hpcrun.run.protocol.messages import BadMessage


def _copied(**fields: object) -> dict[str, object]:
    found = {**asdict(NodeCopyReport(2, 100, 100, 1.5)), **fields}
    return {"type": "copied", "report": found}


def test_nodes_are_put_together(capfd: pytest.CaptureFixture[str]) -> None:
    reports = CopyReports(data=True)
    assert reports.begins(["n1", "n2"])
    assert not reports.take_in("n2", {"type": "copying", "done": 5, "total": 100})
    assert reports.take_in("n1", _copied())
    assert reports.take_in("n2", _copied(copied=0, seconds=2.5, notes=["/data/a is not copied"]))
    assert reports.record() == {
        **{"nodes": 2, "files": 2, "bytes": 100, "copied": 100, "seconds": 2.5},
        **{"slowest": "n2", "notes": ["n2: /data/a is not copied"], "count": 1},
    }
    said = capfd.readouterr().out
    assert "stages data on 2 nodes" in said
    assert "copies, node n2: /data/a is not copied" in said


def test_what_a_spare_copies_ahead_counts_for_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    reports = CopyReports(data=True)
    reports.begins(["n1"])
    assert not reports.take_in("n9", {"type": "copying", "done": 5, "total": 100})
    assert reports.take_in("n9", _copied(seconds=99.0, notes=["/data/a is not copied"]))
    assert reports.record() is None
    assert "n9" not in capfd.readouterr().out


def test_where_nothing_is_staged_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    reports = CopyReports(data=False)
    assert not reports.begins(["n1"])
    assert reports.record() is None
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "message",
    [
        {"type": "copying", "done": -1, "total": 5},
        {"type": "copying", "done": "1", "total": 5},
        {"type": "copied", "report": None},
        {"type": "copied", "report": {"files": 1}},
        _copied(bytes=1.5),
        _copied(seconds=float("nan")),
        _copied(notes=[1]),
        _copied(notes=["a"] * 201),
    ],
)
def test_a_wrong_report_is_refused(message: dict[str, object]) -> None:
    reports = CopyReports(data=True)
    reports.begins(["n1"])
    with pytest.raises(BadMessage):
        reports.take_in("n1", message)
