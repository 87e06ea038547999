"""An agreed stop, and what a signal does to a rank and to the children that it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrun.run.protocol.attempt_fence import EXIT_STALE, AttemptFence
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import Entry
from tests.support.place import REPOSITORY, Place, command_of
from tests.support.waiting import until


def test_all_ranks_save_after_the_same_step_and_the_next_attempt_loses_none(
    place: Place,
) -> None:
    place.submit_counting(100_000, recovery={})
    supervisor = place.start(CUDA_VISIBLE_DEVICES="0,1")
    until(lambda: len(place.steps(1)) > 5)
    supervisor.send_signal(signal.SIGUSR2)
    code, said = place.end(supervisor)
    assert code == 75, said
    assert place.cause()["kind"] == "signal"
    ended = place.attempt().ended
    assert ended is not None
    assert ended["reached_step"] == ended["checkpoint_step"] == place.steps(1)[-1]

    place.submit_counting(ended["reached_step"] + 3, recovery={})
    code, said = place.supervise(CUDA_VISIBLE_DEVICES="0,1")
    assert code == 0, said
    assert place.steps(2) == [ended["reached_step"] + more for more in (1, 2, 3)]


def test_a_stop_before_there_is_anything_to_save_ends_at_once(place: Place) -> None:
    place.submit("sleep 300", recovery={})
    supervisor = place.start()
    until(lambda: place.run.attempt(1).rank_log(0).exists())
    supervisor.send_signal(signal.SIGTERM)
    code, said = place.end(supervisor)
    assert code == 75
    assert "there is nothing to save" in said
    assert place.attempt().stopping is not None


def test_a_script_hears_its_own_signal_and_not_slurms(place: Place) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('saved') or 0))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    (place.code / "own.py").write_text(program)
    place.submit(Entry("script", file="own.py"), recovery={"stop_signal": "SIGUSR1"})
    supervisor = place.start()
    until(lambda: place.run.attempt(1).rank_log(0).exists() and "ready" in place.output())
    (child,) = [
        process.pid
        for process in place.left()
        if any(word.endswith(b"/own.py") for word in command_of(process.pid)[:2])
    ]
    os.kill(child, signal.SIGTERM)
    supervisor.send_signal(signal.SIGTERM)
    code, _ = place.end(supervisor)
    assert code == 75
    assert place.output() == "ready\nsaved\n"
    assert place.cause()["kind"] == "signal"


OUTLIVE = """
import os, sys, time
from pathlib import Path
from hpcrun.run.protocol import stop_flag as stop
stop.outlive_signals(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    time.sleep(30)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.parametrize("heard", [True, False])
def test_a_forked_child_outlives_a_signal_of_the_whole_step_alone(
    tmp_path: Path, heard: bool
) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", OUTLIVE, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    if heard:
        ScratchPaths(tmp_path).heard(signal.SIGTERM).touch()
        rank.send_signal(signal.SIGTERM)
    os.kill(child, signal.SIGTERM)
    if heard:
        time.sleep(1.5)
        assert rank.poll() is None
        os.kill(child, signal.SIGKILL)
    assert int(rank.stdout.readline()) == (-signal.SIGKILL if heard else -signal.SIGTERM)
    assert rank.wait(10) == 0


def test_a_stale_process_leaves_without_writing(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from hpcrun.run.protocol.attempt_fence import AttemptFence\n"
        "from hpcrun.state.layout import AttemptPaths\n"
        "fence = AttemptFence(AttemptPaths(Path(sys.argv[1])))\n"
        "fence.check(); print('mine', flush=True)\n"
        "sys.stdin.readline(); fence.check(); Path(sys.argv[2]).write_text('stale')\n"
    )
    successor, written = tmp_path / "attempts" / "2", tmp_path / "written"
    successor.parent.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(successor.with_name("1")), str(written)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    process.send_signal(signal.SIGSTOP)
    successor.mkdir()
    time.sleep(1.1)
    process.send_signal(signal.SIGCONT)
    process.communicate("go on\n", timeout=10)
    assert process.returncode == EXIT_STALE
    assert not written.exists()


def test_the_fence_is_open_while_the_attempt_is_the_newest(tmp_path: Path) -> None:
    fence = AttemptFence(AttemptPaths(tmp_path / "attempts" / "2"))
    (tmp_path / "attempts" / "2").mkdir(parents=True)
    (tmp_path / "attempts" / "1").mkdir()
    for _ in range(3):
        fence.check()
        fence.check(always=True)


SHELL = """
trap 'echo saved; exit 0' USR1
echo ready
while true; do sleep 0.05; done
"""


def _ready(place: Place) -> int:
    """The process of the program, once it is at work."""
    until(lambda: place.run.attempt(1).rank_log(0).exists() and "ready" in place.output())
    # The shell; what it forks has its command line until it executes another.
    return min(
        process.pid
        for process in place.left()
        if any(word.endswith(b"own.sh") for word in command_of(process.pid)[:3])
    )


def test_a_shell_hears_its_stop_signal_once_whatever_slurm_sends_to_the_step(place: Place) -> None:
    (place.code / "own.sh").write_text(SHELL)
    entry = Entry("command", argv=("bash", "own.sh"))
    place.submit(entry, recovery={"stop_signal": "SIGUSR1"})
    supervisor = place.start()
    child = _ready(place)
    # As by `scancel --signal=USR2 JOB`, which reaches every process of the steps.
    for number in (signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM):
        os.kill(child, number)
    time.sleep(0.5)
    assert "saved" not in place.output()
    supervisor.send_signal(signal.SIGUSR2)
    code, said = place.end(supervisor)
    assert code == 75, said
    assert place.output() == "ready\nsaved\n"
    assert place.cause()["message"] == "asked to stop by SIGUSR2"


def test_a_program_without_a_stop_signal_does_not_die_of_slurms(place: Place) -> None:
    (place.code / "own.sh").write_text("echo ready; sleep 300; echo woken")
    place.submit(Entry("command", argv=("bash", "own.sh")), recovery={})
    supervisor = place.start()
    child = _ready(place)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(child, number)
    time.sleep(0.5)
    assert place.attempt().ended is None
    supervisor.send_signal(signal.SIGUSR2)
    code, said = place.end(supervisor)
    assert code == 75
    assert "recovery.stop_signal names no signal for the program" in said
    assert place.cause()["kind"] == "signal"
    assert place.output() == "ready\n"
