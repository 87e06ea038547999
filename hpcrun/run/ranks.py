"""Which processes of a node are ranks, so that its agent can end them without asking Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def register(scratch: Path, rank: int) -> None:
    """Called by each rank as it starts."""
    (scratch / f"rank-{rank}.pid").write_text(str(os.getpid()))


def kill(scratch: Path) -> None:
    """SIGKILL to each rank of this node and to what it started, its process group."""
    for path in scratch.glob("rank-*.pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.read_text())
            if b"hpcrun.run.worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                group = os.getpgid(pid)
                if group == pid:
                    os.killpg(group, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)
