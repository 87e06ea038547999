"""The processes of ranks are found, with what they started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.node import rank_processes
from hpcrun.run.node.rank_processes import RankEnds
from hpcrun.state.node_layout import ScratchPaths
from tests.support.waiting import until

START = "test-rank-processes"
WORKS = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass\n"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as a rank of this start of a job."""
    monkeypatch.setenv(rank_processes.START_VARIABLE, START)
    variables = {**os.environ, rank_processes.SCRATCH_VARIABLE: str(tmp_path)}
    words = [sys.executable, "-S", "-c", f"{WORKS}print(1, flush=True)\ntime.sleep(600)"]
    with subprocess.Popen(
        words, env=variables, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_registered_rank_is_ended(tmp_path: Path, started: subprocess.Popen[bytes]) -> None:
    ScratchPaths(tmp_path).pid(3).write_text(str(started.pid))
    assert rank_processes.leaders(tmp_path) == {3: started.pid}
    assert not rank_processes.gone(tmp_path, 0)
    rank_processes.kill(tmp_path)
    assert rank_processes.gone(tmp_path, 10)


def test_ranks_whose_registration_is_gone(tmp_path: Path, started: subprocess.Popen[bytes]) -> None:
    """An agent was killed in this attempt, and the next one has its directory anew."""
    assert not rank_processes.gone(tmp_path, 0)
    rank_processes.kill(tmp_path)
    until(lambda: started.poll() is not None, "its end", 10)


def test_processor_time_of_what_ranks_started(
    tmp_path: Path, started: subprocess.Popen[bytes]
) -> None:
    """The rank's own process reports its own."""
    for rank in (3, 4):
        ScratchPaths(tmp_path).pid(rank).write_text(str(started.pid if rank == 3 else 1 << 30))
    assert rank_processes.processor(tmp_path, {3: 0, 4: 0})[3] >= 20
    assert rank_processes.processor(tmp_path, {3: started.pid, 4: 0}) == {3: 0, 4: 0}
    assert rank_processes.processor(tmp_path, {5: 0}) == {}


def test_each_end_is_told_once(tmp_path: Path) -> None:
    """One that has ended, one that was killed, one that works, in a node's directory."""
    works = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    over = subprocess.Popen(["true"])
    over.wait()
    for rank, process in enumerate((over, over, works)):
        ScratchPaths(tmp_path).pid(rank).write_text(str(process.pid))
    rank_processes.write_end(tmp_path, 0, 3)
    ends = RankEnds(tmp_path, [0, 1, 2])
    assert ends.news() == {0: 3, 1: None}
    assert ends.news() == {}
    rank_processes.write_end(tmp_path, 2, 0)
    works.communicate(b"\n")
    assert ends.news() == {2: 0}


def test_one_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RankEnds(tmp_path, [4]).news() == {}
    monkeypatch.setattr(rank_processes, "COMES_WITHIN", -1.0)
    assert RankEnds(tmp_path, [4]).news() == {4: None}


def test_a_code_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    rank_processes.write_end(tmp_path / "gone", 0, 3)
    ScratchPaths(tmp_path).pid(0).write_text("0")
    ScratchPaths(tmp_path).end(0).write_text("?")
    assert RankEnds(tmp_path, [0]).news() == {0: None}
