"""Sizes of the ranks' logs over time, so that lines can be found by time.

Each agent measures the logs of its node's ranks, whose length only that node knows for sure, and
reports them with its pulses; the supervisor writes the record. Neither blocks on the storage.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.node_layout import ScratchPaths

EVERY = 10.0
# Lines of the record are longer, and so rarer, the more ranks there are.
EVERY_A_RANK = 0.1


class LogSizes:
    """The agent's side, which looks ``every`` so many seconds."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = min(every, EVERY)
        self._paths: AttemptPaths | None = None
        self._told: dict[int, int] = {}
        self._found: dict[int, int] = {}
        self._metrics = 0
        self._look_at = 0.0
        self._thread: threading.Thread | None = None

    def output(self) -> dict[int, int]:
        """Return rank -> the bytes that its log had last, for rank 0 with those of its metrics."""
        return {rank: size + (not rank) * self._metrics for rank, size in self._told.items()}

    def changed(self, scratch: Path, paths: AttemptPaths) -> dict[int, int]:
        """Return rank -> bytes of the logs that have grown, and measure again when that is due."""
        if paths != self._paths:
            self._paths, self._told, self._found, self._metrics = paths, {}, {}, 0
        found, self._found = self._found, {}
        found = {rank: size for rank, size in found.items() if self._told.get(rank) != size}
        self._told.update(found)
        if time.monotonic() >= self._look_at and not (self._thread and self._thread.is_alive()):
            self._look_at = time.monotonic() + self._every
            self._thread = threading.Thread(target=self._look, args=(scratch, paths), daemon=True)
            self._thread.start()
        return found

    def _look(self, scratch: Path, paths: AttemptPaths) -> None:
        found = {}
        for rank, _ in ScratchPaths(scratch).pids():
            with contextlib.suppress(OSError):
                found[rank] = os.stat(paths.rank_log(rank)).st_size
        metrics = 0
        if 0 in found:
            with contextlib.suppress(OSError):
                metrics = os.stat(paths.metrics).st_size
        if paths == self._paths:
            self._found, self._metrics = found, metrics


class LogSizeRecord:
    """The supervisor's side, for one attempt; takes what it writes out of ``sizes``."""

    def __init__(self, paths: AttemptPaths, ranks: int, sizes: dict[int, int]) -> None:
        self._path, self._sizes = paths.log_sizes, sizes
        self._every = max(EVERY, EVERY_A_RANK * ranks)
        # The end of a shorter attempt tells as much.
        self._keep_at = time.monotonic() + EVERY
        self._thread: threading.Thread | None = None

    def turn(self) -> None:
        """Write the sizes that have come, if that is due."""
        now = time.monotonic()
        if not self._sizes or now < self._keep_at or (self._thread and self._thread.is_alive()):
            return
        self._keep_at = now + self._every
        line = {"time": round(time.time(), 1), "sizes": dict(self._sizes)}
        self._sizes.clear()
        self._thread = threading.Thread(target=self._write, args=(line,), daemon=True)
        self._thread.start()

    def _write(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            files.append(self._path, line)
