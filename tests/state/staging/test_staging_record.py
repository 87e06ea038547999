"""What nodes staged, in words."""

from __future__ import annotations

from pathlib import Path

from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.staging.staging_record import sentence


def _record(**changed: object) -> dict[str, object]:
    found = {"nodes": 1, "files": 2, "bytes": 3_000_000, "copied": 3_000_000, "seconds": 4.2}
    return {**found, "slowest": "n1", "notes": [], "count": 0, **changed}


def test_the_ledger_takes_terabytes(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    ledger.write(run, ledger.STARTED, 1)
    ledger.write(run, ledger.STAGED, 1, **_record(bytes=3 * 10**12, copied=6 * 10**13))
    [attempt] = ledger.read(run)
    assert attempt.staged is not None
    assert attempt.staged["bytes"] == 3 * 10**12


def test_sentences() -> None:
    assert sentence(_record()) == "staged 3.0 MB in 2 files on 1 node in 4 s"
    assert sentence(_record(copied=0)).endswith("in 4 s: all of it was there already")
    text = sentence(_record(nodes=3, copied=6_000_000))
    assert text == (
        "staged 3.0 MB in 2 files on each of 3 nodes in 4 s (the longest, on n1), 6.0 MB of it "
        "copied now"
    )
