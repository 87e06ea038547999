"""Native stacks of real processes, by whatever tool this machine has, and without one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hpcrun.run.health import native_stack
from tests.support.waiting import until

PROGRAM = """
import threading, time
from hpcrun.run.health import native_stack as native
native.allow()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A program of two threads, which is stopped: it can say nothing itself."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as found:
        assert found.stdout is not None
        assert found.stdout.readline() == b"ready\n"
        os.kill(found.pid, signal.SIGSTOP)
        yield found
        found.kill()


@pytest.mark.parametrize("tool", ["eu-stack", "gdb"])
def test_the_stacks_of_a_process_that_is_stopped(
    process: subprocess.Popen[bytes], tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"there is no {tool} on this machine")
    monkeypatch.setattr(shutil, "which", lambda name: path if name == tool else None)
    found = native_stack.stacks(process.pid, 60)
    assert found.startswith(f"Native stacks ({tool}):\n")
    assert found.count("#0") == 2
    until(lambda: native_stack.threads(process.pid).splitlines()[0].split()[2] == "T")


def test_without_a_tool_the_kernel_tells_of_each_thread(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    title, first, *others = native_stack.stacks(process.pid, 1).splitlines()
    assert title == "Native threads:"
    assert int(first.split()[0]) == process.pid
    assert len(others) == 1


def test_a_tool_that_takes_too_long(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_stack, "_debuggers", lambda pid: [["sleep", "60"]])
    assert native_stack.stacks(process.pid, 0.2).startswith("Native threads:")


def test_a_process_that_is_gone() -> None:
    assert native_stack.stacks(1 << 30, 1) == "Native threads:\n\n"
