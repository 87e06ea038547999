"""Ranks that write one file of their working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.work import shared_writes
from hpcrun.run.work.shared_writes import OpenFiles, SharedWrites
from hpcrun.state import ledger
from tests.support.waiting import until

WRITER = """
import os, sys, time
files = [open(name, mode) for name, mode in zip(sys.argv[1::2], sys.argv[2::2])]
for file in files:
    if file.writable() and not file.name.endswith("empty"):
        file.write("1")
        file.flush()
print("open", flush=True)
time.sleep(300)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A rank's process group, with files open in every way."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "read").write_text("1")
    names = {"model.pt": "w", "all.log": "a", "read": "r", "a.lock": "w", "empty": "w", "r+": "w+"}
    # Every reader of LMDB's has its file of locks open like that.
    names["lock.mdb"] = "w+"
    arguments = [word for name, mode in names.items() for word in (f"work/{name}", mode)]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments, "outside", "w"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.wait()


def test_files_that_a_rank_could_overwrite(tmp_path: Path, rank: subprocess.Popen[str]) -> None:
    found = shared_writes.open_files({rank.pid: 4}, os.path.realpath(tmp_path / "work"))
    assert sorted(found) == [(4, "model.pt"), (4, "r+")]


def test_a_file_is_told_once(
    tmp_path: Path, rank: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "EVERY", 0.0)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "rank-4.pid").write_text(str(rank.pid))
    files = OpenFiles(tmp_path / "scratch", tmp_path / "work")
    found: dict[str, list[int]] = {}
    until(lambda: found.update(files.news()) or found)
    assert found == {"model.pt": [4], "r+": [4]}
    assert files._thread is not None
    files._thread.join()
    assert files.news() == {}


def test_the_first_file_of_two_ranks_is_recorded_once() -> None:
    recorded: list[dict[str, Any]] = []
    seen = [("a", 0), ("b", 1), ("a", 0)]
    writes = SharedWrites(seen, lambda event, **details: recorded.append({event: details}))
    writes.turn()
    assert recorded == []
    seen += [("b", 0), ("a", 1)]
    writes.turn()
    assert recorded == [{ledger.SHARED_WRITE: {"file": "b", "ranks": [0, 1]}}]
    assert seen == []
