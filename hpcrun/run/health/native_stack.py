"""Native stacks of another process: where it is in NCCL, CUDA, a file system.

They come from `eu-stack` of elfutils or gdb where one is installed; else from the kernel, which
reports at least the call in which each thread waits. A process that is stopped or stuck in a call
cannot write its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from hpcrun.host import process_stat

# prctl(2), by which -1 lets any process attach.
_PR_SET_PTRACER = 0x59616D61
_FRAMES = 40


def allow() -> None:
    """Let the user's other processes look at this one, where Yama (ptrace_scope 1) forbids it."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def stacks(pid: int, timeout: float) -> str:
    """Return the native stacks of all threads of a process as text; never fails.

    The timeout (seconds) is for all debuggers together: libraries with many symbols take long.
    """
    deadline = time.monotonic() + timeout
    for command in _debuggers(pid):
        try:
            told = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(0.1, deadline - time.monotonic()),
                check=False,
                # No download of symbols.
                env={**os.environ, "DEBUGINFOD_URLS": ""},
            )
        except (OSError, subprocess.TimeoutExpired):
            break
        text = told.stdout.decode(errors="replace")
        if "#0" in text:
            return f"Native stacks ({Path(command[0]).name}):\n{text}"
    return f"Native threads:\n{threads(pid)}"


def _debuggers(pid: int) -> list[list[str]]:
    known = {
        "eu-stack": ["-n", str(_FRAMES), "-p", str(pid)],
        "gdb": ["-nx", "-batch", "-p", str(pid), "-ex", f"thread apply all bt {_FRAMES}"],
    }
    return [[found, *rest] for name, rest in known.items() if (found := shutil.which(name))]


def threads(pid: int) -> str:
    """Return a line for each thread: id, name, state, and the kernel function it waits in."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, IndexError):
            name = (task / "comm").read_text().strip()
            where = ""
            with contextlib.suppress(OSError):
                where = (task / "wchan").read_text().strip("0")
            lines.append(f"  {task.name} {name} {process_stat(task)[0]} {where}".rstrip())
    return "\n".join(lines) + "\n"
