"""What a node sees of the programs of its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.health.program_hangs import RankActivity
from hpcrun.run.health.progress import GONE
from hpcrun.run.node import program_activity
from hpcrun.run.node.program_activity import Process, ProgramActivity
from tests.support.waiting import until

# A leader, a shell below it, and a program of that which another session has.
LEADER = """
import os, subprocess, sys
subprocess.run(["bash", "-c", "setsid $0 -c 'import time; time.sleep(60)'; true", sys.executable])
"""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", LEADER], start_new_session=True)
    with process:
        until(lambda: len(_processes(process.pid)) == 3)
        yield process
        for one in _processes(process.pid):
            os.kill(one.pid, signal.SIGKILL)


def _processes(leader: int) -> list[Process]:
    return program_activity.processes({5: leader})[5]


def test_a_rank_and_all_that_it_started(leader: subprocess.Popen[bytes]) -> None:
    found = {one.pid: one for one in _processes(leader.pid)}
    assert found[leader.pid].group == leader.pid
    outside = [one for one in found.values() if one.group != leader.pid]
    assert [one.pid == one.group for one in outside] == [True]
    seen = program_activity.activity(list(found.values()), leader.pid, 70, True)
    assert (seen.output, seen.state) == (70, "S")
    assert seen.io > 10_000
    with_leader = program_activity.activity(list(found.values()), leader.pid, 70, False)
    assert with_leader.io > seen.io


def test_a_program_that_is_stopped(leader: subprocess.Popen[bytes]) -> None:
    """The shell above waits; what is stopped is the program."""
    program = next(one.pid for one in _processes(leader.pid) if one.group != leader.pid)

    def state() -> str:
        return program_activity.activity(_processes(leader.pid), leader.pid, 0, True).state

    assert state() == "S"
    os.kill(program, signal.SIGSTOP)
    until(lambda: state() == "T")
    os.kill(program, signal.SIGCONT)
    until(lambda: state() == "S")


def _process(pid: int, parent: int, state: str, processor: int = 10) -> Process:
    return Process(pid, parent, 1, state, processor)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([], GONE),
        ([_process(1, 0, "S")], GONE),
        ([_process(2, 1, "S")], "S"),
        ([_process(2, 1, "T")], "T"),
        ([_process(1, 0, "T"), _process(2, 1, "S")], "S"),
        ([_process(2, 1, "S"), _process(3, 2, "T")], "T"),
        ([_process(2, 1, "T"), _process(3, 2, "S"), _process(4, 2, "S")], "T"),
        ([_process(2, 1, "S"), _process(3, 2, "T"), _process(4, 2, "R")], "P"),
        ([_process(2, 1, "S"), _process(3, 2, "D")], "D"),
        ([_process(2, 1, "T"), _process(3, 1, "D")], "P"),
    ],
    ids=[
        *("nobody", "the worker alone", "a program", "stopped", "only the worker is stopped"),
        *("below a shell", "with data loaders", "one of torchrun's", "waits for storage", "one of"),
    ],
)
def test_the_state_of_a_rank(found: list[Process], state: str) -> None:
    assert program_activity.activity(found, 1, 0, True).state == state


def test_only_what_changes_is_told(leader: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "rank-5.pid").write_text(str(leader.pid))
    (tmp_path / "rank-6.pid").write_text("no number")
    watch = ProgramActivity(60.0, leads=True)
    watch.begin(None, None)

    def news(sessions: tuple[int, ...] = (), output: int = 3) -> dict[str, object]:
        watch._look_at = 0.0
        return watch.changed(tmp_path, sessions, {5: output})

    first = news()
    programs = first["programs"]
    assert isinstance(programs, dict)
    assert RankActivity(**programs[5]).output == 3
    assert set(first) == {"programs", "traffic"}
    until(lambda: news()["programs"] == {})
    assert watch.changed(tmp_path, (), {5: 9}) == {}, "before it is time for a look"
    assert set(news(output=4)["programs"]) == {5}  # type: ignore[call-overload]
    assert news(sessions=(5,)) == {}
    assert set(news(output=4)["programs"]) == {5}  # type: ignore[call-overload]
    watch.begin(None, None)
    assert set(news(output=4)["programs"]) == {5}, "of a new attempt"  # type: ignore[call-overload]
    assert len(watch.processes(tmp_path, ())[5]) == 2
    never = ProgramActivity(0.0, leads=True)
    assert never.changed(tmp_path, (), {5: 3}) == {}
    assert never.processes(tmp_path, ()) == {}


@pytest.mark.parametrize(
    ("hang_after", "every"), [(3.0, 2.0), (60.0, 2.0), (300.0, 10.0), (1e5, 10.0), (0.0, 10.0)]
)
def test_how_often_a_node_looks(hang_after: float, every: float) -> None:
    assert program_activity.look_every(hang_after) == every
