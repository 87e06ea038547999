"""A debugger on a rank: ``breakpoint()`` waits for somebody who attaches to it.

With ``environment.variables: {PYTHONBREAKPOINT: hpcrun.testing.rank_debugger.wait}`` the rank's log
says what to type. The socket lies in a directory that only its user can open.
"""

from __future__ import annotations

import os
import pdb
import select
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any


def wait(*_: object, **__: object) -> None:
    """Wait for a person, and debug the caller's frame with them; ``continue`` lets it go on."""
    path = Path(tempfile.mkdtemp(prefix="hpcrun-")) / "pdb"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        rank, run = os.environ.get("RANK", "0"), os.environ.get("HPCRUN_RUN", "RUN")
        attach = f"python -m hpcrun.testing.rank_debugger {path}"
        print(f"breakpoint: hpcrun exec {run} --rank {rank} {attach}", flush=True)
        connection, _address = listener.accept()
    path.unlink()
    path.parent.rmdir()
    # Two files: one for both would forget what it has read ahead as soon as it writes.
    typed, told = connection.makefile("r"), connection.makefile("w")
    pdb.Pdb(stdin=typed, stdout=told).set_trace(sys._getframe(1))


def attach(path: str) -> None:
    """Pass the terminal's lines to a rank that waits, and what it says back."""
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(path)
        heard: list[Any] = [rank, sys.stdin]
        while True:
            ready, _, _ = select.select(heard, [], [])
            if rank in ready:
                if not (said := rank.recv(1 << 16)):
                    return
                sys.stdout.write(said.decode(errors="replace"))
                sys.stdout.flush()
            if sys.stdin in ready:
                if typed := os.read(sys.stdin.fileno(), 1 << 12):
                    rank.sendall(typed)
                else:
                    rank.shutdown(socket.SHUT_WR)
                    heard = [rank]


if __name__ == "__main__":
    attach(sys.argv[1])
