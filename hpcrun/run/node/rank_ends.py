"""The ends of ranks that no srun of their supervisor's watches.

They were warm under a supervisor that is lost, so that srun was lost with it. Their worker writes
its exit code; one that is gone without was killed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from pathlib import Path

from hpcrun.host import start_ticks
from hpcrun.run.node import rank_processes
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths

# Seconds within which a warm rank that was called has taken its place.
COMES_WITHIN = 15.0
_LONGEST = 10


def write(scratch: Path, rank: int, code: int) -> None:
    """Write the exit code of this process, a rank's. Best effort on a full disk."""
    with contextlib.suppress(OSError):
        files.write_bytes(ScratchPaths(scratch).end(rank), str(code).encode())


class RankEnds:
    """The ends of some ``ranks`` of this node, since they were called; told once each."""

    def __init__(self, scratch: Path, ranks: Collection[int]) -> None:
        self._scratch, self._living = scratch, {*ranks}
        self._until = time.monotonic() + COMES_WITHIN

    def news(self) -> dict[int, int | None]:
        """Return rank -> exit code of those that have ended since; None where it left none."""
        found = {}
        for rank in [*self._living]:
            try:
                lives = start_ticks(rank_processes.leader(self._scratch, rank)) is not None
            except (OSError, ValueError):
                lives = time.monotonic() < self._until
            if not lives:
                self._living.discard(rank)
                found[rank] = self._code(rank)
        return found

    def _code(self, rank: int) -> int | None:
        try:
            return int(files.read_bytes(ScratchPaths(self._scratch).end(rank), _LONGEST))
        except (OSError, ValueError):
            return None
