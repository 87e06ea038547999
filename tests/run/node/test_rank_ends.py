"""The ends of ranks that no srun watches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.run.node import rank_ends
from hpcrun.run.node.rank_ends import RankEnds
from hpcrun.state.node_layout import ScratchPaths


def test_each_end_is_told_once(tmp_path: Path) -> None:
    """One that has ended, one that was killed, one that works, in a node's directory."""
    works = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    over = subprocess.Popen(["true"])
    over.wait()
    for rank, process in enumerate((over, over, works)):
        ScratchPaths(tmp_path).pid(rank).write_text(str(process.pid))
    rank_ends.write(tmp_path, 0, 3)
    ends = RankEnds(tmp_path, [0, 1, 2])
    assert ends.news() == {0: 3, 1: None}
    assert ends.news() == {}
    rank_ends.write(tmp_path, 2, 0)
    works.communicate(b"\n")
    assert ends.news() == {2: 0}


def test_one_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RankEnds(tmp_path, [4]).news() == {}
    monkeypatch.setattr(rank_ends, "COMES_WITHIN", -1.0)
    assert RankEnds(tmp_path, [4]).news() == {4: None}


def test_a_code_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    rank_ends.write(tmp_path / "gone", 0, 3)
    ScratchPaths(tmp_path).pid(0).write_text("0")
    ScratchPaths(tmp_path).end(0).write_text("?")
    assert RankEnds(tmp_path, [0]).news() == {0: None}
