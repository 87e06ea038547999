"""Processes forked from one that has imported what they need.

Of ranks, which have torch and DeepSpeed then: a start takes 0.1 s, not 5. And of hpcrun's commands,
which begin 0.2 s earlier. How ranks and commands are started is tested with real starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


class Child:
    """A process of a nursery's, whose parent this one is not.

    Attributes
    ----------
    pid
        Its number where the nursery is, which may be another machine of a bed.
    """

    def __init__(self, nursery: Nursery, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
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
            self._nursery.kill(self.pid)


RANKS, COMMANDS = "ranks", "commands"


@functools.lru_cache
def nursery(python: str = sys.executable, of: str = RANKS) -> Nursery:
    """The nursery of a Python, which ends with this process."""

    def start(arguments: list[str], descriptor: int) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            [python, *arguments],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            cwd=REPOSITORY,
            env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        )

    return Nursery(start, of)


class Nursery:
    """One process that forks others.

    Parameters
    ----------
    start
        Starts a Python with these arguments, which is given this descriptor.
    of
        What it forks: `RANKS` or `COMMANDS`.
    """

    def __init__(self, start: Callable[[list[str], int], subprocess.Popen[Any]], of: str) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = ["-m", "tests.support.nursery", str(theirs.fileno()), of]
            self._process = start(arguments, theirs.fileno())
        atexit.register(self._end)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()

    def is_alive(self) -> bool:
        """Check whether it can be asked."""
        return self._process.poll() is None

    def kill(self, pid: int) -> None:
        """Kill one of its own, unless that has ended."""
        with self._lock:
            self._ours.send(json.dumps({"kill": pid}).encode())
            self._ours.recv(16)

    def start(
        self,
        program: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        pass_fds: Sequence[int] = (),
        cwd: Path = REPOSITORY,
    ) -> Child:
        """Start ``-m MODULE`` or ``-c CODE`` with arguments.

        Parameters
        ----------
        env
            Its whole environment.
        output, errors
            The descriptors that it writes to; by default one for both.
        pass_fds
            Descriptors whose numbers are its last arguments.
        """
        ended, status = os.pipe()
        told = {"program": [*program], "environment": dict(env), "directory": str(cwd)}
        streams = [output, output if errors is None else errors]
        descriptors = [status, *streams, *pass_fds]
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(told).encode()], descriptors)
            os.close(status)
            return Child(self, int(self._ours.recv(16)), ended)


def main() -> None:
    """Fork at each message; tell how each child ended."""
    _import_for_ranks() if sys.argv[2] == RANKS else _import_for_commands()
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
        told = json.loads(text)
        if "kill" in told:
            if told["kill"] in running:
                os.kill(told["kill"], signal.SIGKILL)
            asked.send(b"done")
            continue
        status, *passed = descriptors
        pid = os.fork()
        if not pid:
            asked.close()
            for other in (ended_here, wake, status, *running.values()):
                os.close(other)
            _become(told, *passed)
        running[pid] = status
        for descriptor in passed:
            os.close(descriptor)
        asked.send(str(pid).encode())


def _import_for_ranks() -> None:
    import deepspeed  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401 - what an engine imports


def _import_for_commands() -> None:
    for name in ("cli", "compile", "observe", "policy", "slurm", "state", "submission"):
        package = importlib.import_module(f"hpcrun.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # It has libraries of its own.
            if ".top" not in module.name:
                importlib.import_module(module.name)


def _reap(running: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = running.pop(found[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(status, str(os.waitstatus_to_exitcode(found[1])).encode())
            os.close(status)


def _become(told: dict[str, Any], output: int, errors: int, *passed: int) -> None:
    """Run the program in this process and end it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        os.environ.clear()
        os.environ.update(told["environment"])
        time.tzset()
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
