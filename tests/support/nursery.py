"""Processes forked from one that has imported torch and DeepSpeed: a start takes 0.1 s, not 5.

For tests of what ranks do. How ranks are started is tested with real starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class Child:
    """A process of the nursery's, whose parent this one is not."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self, timeout: float = 0.0) -> int | None:
        """Return how it ended, as `subprocess.Popen` tells it; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float = 120.0) -> int:
        """Wait for its end."""
        ended = self.poll(timeout)
        assert ended is not None, f"process {self.pid} has not ended within {timeout:g} s"
        return ended

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            # Perhaps it is being reaped at this moment.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@functools.lru_cache
def nursery(python: str = sys.executable) -> Nursery:
    """The nursery of a Python, which ends with this process."""
    return Nursery(python)


class Nursery:
    """One process that forks others."""

    def __init__(self, python: str) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-m", "tests.support.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()

    def start(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        pass_fds: Sequence[int] = (),
        cwd: Path = REPOSITORY,
    ) -> Child:
        """Start ``-m MODULE`` or ``-c CODE`` with arguments.

        Parameters
        ----------
        env
            Its whole environment.
        output
            The descriptor that it writes to.
        pass_fds
            Descriptors whose numbers are its last arguments.
        """
        ended, status = os.pipe()
        told = {"program": [*program], "environment": dict(env), "directory": str(cwd)}
        socket.send_fds(self._ours, [json.dumps(told).encode()], [output, status, *pass_fds])
        os.close(status)
        return Child(int(self._ours.recv(16)), ended)


def main() -> None:
    """Fork at each message; tell how each child ended."""
    import deepspeed  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401 - what an engine imports

    asked = socket.socket(fileno=int(sys.argv[1]))
    ended_here, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked, ended_here], [], [])
        if ended_here in ready:
            os.read(ended_here, 4096)
            _reap(running)
        if asked not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 32)
        if not text:
            return
        output, status, *passed = descriptors
        pid = os.fork()
        if not pid:
            asked.close()
            for other in (ended_here, wake, status, *running.values()):
                os.close(other)
            _become(json.loads(text), output, passed)
        running[pid] = status
        for descriptor in (output, *passed):
            os.close(descriptor)
        asked.send(str(pid).encode())


def _reap(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = running.pop(found[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(status, str(os.waitstatus_to_exitcode(found[1])).encode())
            os.close(status)


def _become(told: dict[str, Any], output: int, passed: list[int]) -> None:
    """Run the program in this process and end it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(told["environment"])
        os.chdir(told["directory"])
        kind, what, *arguments = told["program"]
        sys.argv = [kind, *arguments, *map(str, passed)]
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})  # noqa: S102 - a test's own program
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
