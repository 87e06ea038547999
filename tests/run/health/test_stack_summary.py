"""Which rank holds up the others, from what real interpreters write down."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.health import progress, stack_summary
from hpcrun.run.health.stack_summary import ThreadPosition
from tests.support.place import REPOSITORY
from tests.support.waiting import until

RANK = """
import sys, threading, time
from pathlib import Path
from hpcrun.run.health import progress as pulse
scratch = Path(sys.argv[1])
heart = pulse.writer(scratch, 4)
assert pulse.writer(scratch, 4) is heart
heart.write(pulse.STEPPING, 7)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def read_batch():
    %s
read_batch()
"""


@pytest.fixture
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A rank whose program does one thing for ever."""
    program = tmp_path / "train.py"
    program.write_text(RANK % request.param)
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)], env={"PYTHONPATH": str(REPOSITORY)}
    )
    with process:
        until(lambda: 4 in progress.read(tmp_path) and progress.read(tmp_path)[4].step == 7)
        yield process
        process.kill()


@pytest.mark.parametrize("rank", ["time.sleep(60)"], indirect=True)
def test_a_rank_that_waits(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    time.sleep(2.5)
    first = progress.read(tmp_path)[4]
    assert (first.step, first.phase, first.state) == (7, progress.STEPPING, "S")
    time.sleep(2.5)
    later = progress.read(tmp_path)[4]
    assert later.looks > first.looks
    assert later.moves == first.moves
    progress.ask_for_stacks(tmp_path)
    # The main thread's is the last that is written.
    until(lambda: "<module>" in progress.stacks(tmp_path).get(4, ""))
    found = stack_summary.position(progress.stacks(tmp_path)[4])
    assert found == ThreadPosition("read_batch", "train.py:11 (read_batch)", collective=False)
    assert rank.poll() is None


@pytest.mark.parametrize(
    "rank", ["while True: sum(range(100000)); max(range(100000))"], indirect=True
)
def test_a_rank_that_works(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    first = progress.read(tmp_path)[4]
    until(lambda: progress.read(tmp_path)[4].moves >= first.moves + 2)
    assert progress.read(tmp_path)[4].processor > first.processor


@pytest.mark.parametrize("rank", ["time.sleep(60)"], indirect=True)
def test_a_rank_that_is_stopped(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    os.kill(rank.pid, signal.SIGSTOP)
    until(lambda: progress.read(tmp_path)[4].state == "T")
    progress.ask_for_stacks(tmp_path)
    time.sleep(0.5)
    assert progress.stacks(tmp_path) == {}
    rank.kill()
    until(lambda: progress.living(tmp_path) == {})
    assert progress.read(tmp_path)[4].state == progress.GONE


@pytest.mark.parametrize("rank", ["time.sleep(60)"], indirect=True)
def test_another_process_of_the_same_rank_does_not_speak_for_it(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    other = progress.ProgressWriter(tmp_path, 4)
    other.write(progress.SAVING, 99)
    found = progress.read(tmp_path)[4]
    assert (found.pid, found.step) == (rank.pid, 7)


def test_where_there_is_no_place_for_a_pulse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.ProgressWriter(tmp_path / "gone", 0).write(progress.STEPPING, 1)
    assert "hangs of this rank will not be noticed: " in capsys.readouterr().out


WAITS = ThreadPosition("all_reduce", "train.py:40 (train)", collective=True)
SAVES = ThreadPosition("barrier", "x.py:1 (f)", collective=True)
READS = ThreadPosition("get", "train.py:30 (read)", collective=False)


@pytest.mark.parametrize(
    ("places", "steps", "expected"),
    [
        ({0: WAITS, 1: READS, 2: WAITS}, {0: 5, 1: 5, 2: 5}, 1),
        ({0: WAITS, 1: None, 2: WAITS}, {0: 5, 1: 5, 2: 5}, 1),
        ({0: WAITS, 1: WAITS}, {0: 5, 1: 4}, 1),
        ({0: WAITS, 1: WAITS}, {0: 5, 1: 5}, None),
        ({0: READS}, {0: 5}, 0),
        (
            {0: WAITS, 1: WAITS, 2: ThreadPosition("barrier", "x.py:1 (f)", True)},
            dict.fromkeys(range(3), 5),
            2,
        ),
        ({0: READS, 1: READS, 2: READS}, {0: 5, 1: 5, 2: 5}, None),
    ],
)
def test_the_culprit(
    places: dict[int, ThreadPosition | None], steps: dict[int, int], expected: int | None
) -> None:
    assert stack_summary.culprit(places, steps) == expected


def test_what_is_told() -> None:
    places: dict[int, ThreadPosition | None] = {0: WAITS, 1: READS, 2: WAITS}
    assert stack_summary.describe(places, 1) == (
        "rank 1 is in train.py:30 (read), in get; the others wait in train.py:40 (train), in "
        "all_reduce"
    )
    assert stack_summary.describe({0: WAITS, 1: None}, 1).startswith(
        "rank 1 does not answer; the others"
    )
    assert (
        stack_summary.describe({0: WAITS, 1: WAITS}, None)
        == "most are in train.py:40 (train), in all_reduce"
    )
    assert stack_summary.describe({}, None) == ""


@pytest.mark.parametrize(
    "text", ["", "garbage", "Thread 0x1 (most recent call first):\n  <no Python frame>"]
)
def test_what_does_not_say_where(text: str) -> None:
    assert stack_summary.position(text) is None


def test_ranks_that_send_and_that_receive_are_in_the_same_collective() -> None:
    def text(*calls: str) -> str:
        frames = [*calls, "rank/collectives.py reduce", "checkpoint/save.py _conclude"]
        pairs = (one.split() for one in frames)
        shown = (f'  File "/zip/hpcrun/run/{path}", line 1 in {name}' for path, name in pairs)
        return "\n".join(["Thread 0x1 (most recent call first):", *shown])

    sends = stack_summary.position(text("rank/peer_messages.py wait"))
    receives = stack_summary.position(
        text("rank/peer_messages.py take", "rank/peer_messages.py receive")
    )
    assert sends == receives == ThreadPosition("_conclude", "", collective=True)


@pytest.mark.parametrize("room", ["session", "rank.metrics", "checkpoint.save", "protocol.launch"])
def test_frames_of_hpcrun_are_not_the_users(room: str) -> None:
    module = importlib.util.find_spec(f"hpcrun.run.{room}")
    assert module is not None
    text = (
        "Thread 0x1 (most recent call first):\n"
        f'  File "{module.origin}", line 3 in wait\n'
        '  File "/home/ada/hpcrun/jobs/train.py", line 41 in read_batch\n'
    )
    assert stack_summary.position(text) == ThreadPosition(
        "wait", "train.py:41 (read_batch)", collective=False
    )
