"""An interactive command in the cluster, with a terminal of its own for its job control."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from .cluster import Cluster


def run_in_terminal(cluster: Cluster, argv: Sequence[str], **options: Any) -> int:
    """Run `argv` as `Cluster.popen` does, joined to this terminal; return its exit status."""
    master, slave = pty.openpty()
    size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)) if sys.stdin.isatty() else b""
    if size:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    env = {"TERM": os.environ.get("TERM", "dumb")}
    command = ["setsid", "--ctty", "--wait", *argv]
    ends: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
    child = cluster.popen(command, env=env, **ends, **options)
    os.close(slave)
    sources = {0: master, master: 1}
    with _raw():
        while True:
            ready, _, _ = select.select(list(sources), [], [], 0.2)
            # What it left in the background may hold the terminal open for ever.
            if not ready and child.poll() is not None:
                return int(child.returncode)
            for fd in ready:
                try:
                    data = os.read(fd, 65536)
                except OSError:
                    data = b""
                if data:
                    os.write(sources[fd], data)
                elif fd == master:
                    return int(child.wait())
                else:
                    del sources[fd]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
