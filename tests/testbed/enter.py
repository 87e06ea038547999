"""Starting processes inside a machine of the bed."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import cgroups, kernel

_lock = threading.Lock()
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Machine:
    """A running machine: the outer id of its process 1, and its cgroup."""

    pid: int
    cgroup: str


def popen(
    machine: Machine,
    argv: Sequence[str],
    *,
    uid: int,
    env: Mapping[str, str],
    cwd: str,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `argv` in all the namespaces of a machine.

    The process returned is the command itself, no wrapper: signals sent to it arrive there. For
    this it is forked from a thread whose children are born in the machine's process namespace.
    """
    command = ["sh", "-c", _JOIN, "sh", *cgroups.procs_files(machine.cgroup), "--"]
    command += ["nsenter", f"--target={machine.pid}", "-m", "-u", "-i", "-n", "-C", "-r", "-w"]
    command += [f"--setuid={uid}", f"--setgid={uid}", "--", "/usr/bin/env", "-i", f"--chdir={cwd}"]
    command += [f"{key}={value}" for key, value in env.items()] + list(argv)
    with (
        _lock,
        open(f"/proc/{machine.pid}/ns/pid") as inner,
        open("/proc/self/ns/pid") as outer,
    ):
        kernel.setns(inner.fileno(), kernel.CLONE_NEWPID)
        try:
            return subprocess.Popen(command, **options)
        finally:
            kernel.setns(outer.fileno(), kernel.CLONE_NEWPID)


def script_environment() -> dict[str, str]:
    """Return the environment of the bed's own helper processes."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"} | {
        key: os.environ[key] for key in ("PYTHONDONTWRITEBYTECODE",) if key in os.environ
    }
