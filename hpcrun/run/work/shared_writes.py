"""Files of the working directory that several ranks write: each destroys what another wrote.

Agents see which files their ranks have open for writing, the supervisor compares the nodes. A file
that is appended to, empty (a lock) or a data base is none of these. What is open for less than the
time between two looks may not be seen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcrun.host import process_directories, process_stat
from hpcrun.run.node import rank_processes
from hpcrun.run.protocol.output import say
from hpcrun.text import ranges

EVERY = 10.0
# So many files of a node and an attempt are told.
MOST_FILES = 200
_SHARED = (".lock", ".db", ".mdb", ".sqlite", ".sqlite3")


class OpenFiles:
    """The agent's side: the files below a directory that a node's ranks write."""

    def __init__(self, scratch: Path, work: Path) -> None:
        self._scratch, self._work = scratch, work
        self._told: set[tuple[str, int]] = set()
        self._found: dict[str, list[int]] = {}
        self._look_at = time.monotonic() + EVERY
        self._thread: threading.Thread | None = None

    def news(self) -> dict[str, list[int]]:
        """Return file -> ranks that were seen to write it, each once; look again when it is due."""
        found, self._found = self._found, {}
        if time.monotonic() >= self._look_at and not (self._thread and self._thread.is_alive()):
            self._look_at = time.monotonic() + EVERY
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return found

    def _look(self) -> None:
        groups = {pid: rank for rank, pid in rank_processes.leaders(self._scratch).items()}
        found: dict[str, list[int]] = {}
        for rank, name in open_files(groups, os.path.realpath(self._work)):
            if (name, rank) not in self._told and len(self._told) < MOST_FILES:
                self._told.add((name, rank))
                found.setdefault(name, []).append(rank)
        self._found = found


def open_files(groups: dict[int, int], directory: str) -> Iterator[tuple[int, str]]:
    """Yield rank and name of each file below a directory that a rank could overwrite.

    ``groups`` maps process groups to ranks.
    """
    for process in process_directories():
        with contextlib.suppress(OSError, ValueError, IndexError):
            rank = groups.get(int(process_stat(process)[2]))
            if rank is None:
                continue
            for descriptor in os.listdir(process / "fd"):  # noqa: PTH208 - names alone
                with contextlib.suppress(OSError, ValueError):
                    link = f"{process}/fd/{descriptor}"
                    name = os.readlink(link)  # noqa: PTH115 - thousands of them
                    if name.startswith(f"{directory}/") and _overwrites(process, descriptor, name):
                        yield rank, name[len(directory) + 1 :]


def _overwrites(process: Path, descriptor: str, name: str) -> bool:
    if name.endswith((*_SHARED, " (deleted)")):
        return False
    lines = (process / "fdinfo" / descriptor).read_text().splitlines()
    flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    writes = flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND
    return writes and (process / "fd" / descriptor).stat().st_size > 0


class SharedWrites:
    """The supervisor's side, for one attempt; takes what it compares out of ``seen``.

    ``record`` writes an event of the ledger, once, for the first file that several ranks write.
    """

    def __init__(self, seen: list[tuple[str, int]], record: Callable[..., None]) -> None:
        self._seen, self._record = seen, record
        self._writers: dict[str, set[int]] = {}
        self._is_told = False

    def turn(self) -> None:
        """Compare what agents have seen."""
        while self._seen:
            name, rank = self._seen.pop(0)
            writers = self._writers.setdefault(name, set())
            writers.add(rank)
            if len(writers) > 1 and not self._is_told:
                self._is_told = True
                from hpcrun.state import ledger  # which agents do without

                say(
                    f"ranks {','.join(ranges(writers))} write one file, {name}: what one writes, "
                    "another may destroy; `working_directory: rank` gives each its own"
                )
                self._record(ledger.SHARED_WRITE, file=name, ranks=sorted(writers))
