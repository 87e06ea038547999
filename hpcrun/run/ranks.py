"""Which processes of a node are ranks, so that its agent can end them without asking Slurm.

Each rank leads a process group, in which what it started is found even when the rank itself is
dead: a program whose worker was killed, or a data loader, holds the memory of a GPU as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from hpcrun.run.channel import TOKEN_VARIABLE

_PROC = Path("/proc")


def register(scratch: Path, rank: int) -> None:
    """Called by each rank as it starts."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    (scratch / f"rank-{rank}.pid").write_text(str(os.getpid()))


def hurt(scratch: Path, rank: int, number: int) -> None:
    """Signal one rank."""
    os.kill(int((scratch / f"rank-{rank}.pid").read_text()), number)


def kill(scratch: Path) -> None:
    """SIGKILL to the process group of each rank of this node."""
    for group in {group for group, _ in _members(scratch)}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def gone(scratch: Path, timeout: float) -> bool:
    """Whether nothing of the ranks of this node is left, after so many seconds at the latest.

    What a process held of a GPU's memory is free when it is gone.
    """
    deadline = time.monotonic() + timeout
    while next(_members(scratch), None) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _members(scratch: Path) -> Iterator[tuple[int, int]]:
    """Group and process id of whatever lives in the ranks' groups."""
    groups = set()
    for path in scratch.glob("rank-*.pid"):
        with contextlib.suppress(OSError, ValueError):
            groups.add(int(path.read_text()))
    if not groups:
        return
    token = os.environ.get(TOKEN_VARIABLE, "")
    for process in _PROC.iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (process / "stat").read_text(errors="replace")
            # The name, in parentheses, may hold anything, parentheses and spaces too.
            state, _, group = text[text.rindex(")") + 2 :].split()[:3]
            if int(group) in groups and state not in "ZX" and _is_ours(process, token):
                yield int(group), int(process.name)


def _is_ours(process: Path, token: str) -> bool:
    """Whether it is of this start of the job: ids are used again."""
    if b"hpcrun.run.worker" in (process / "cmdline").read_bytes().split(b"\0"):
        return True
    mine = f"{TOKEN_VARIABLE}={token}".encode()
    return bool(token) and mine in (process / "environ").read_bytes().split(b"\0")
