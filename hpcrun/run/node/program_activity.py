"""Activity of the programs of a node's ranks: what their processes use, and what state they have.

A rank's processes are those of its process group and all that descend from its leader: torchrun
starts its ranks in sessions of their own. One pass over /proc serves all ranks of the node.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrun.host import process_directories, process_stat
from hpcrun.run.health.program_hangs import (
    PARTLY_STOPPED,
    SLEEPING,
    STOPPED_STATE,
    STORAGE_STATE,
    NodeTraffic,
    RankActivity,
)
from hpcrun.run.health.progress import GONE
from hpcrun.run.node import build_locks, rank_processes
from hpcrun.run.node.counters import Counters
from hpcrun.run.protocol.heartbeat import INTERVAL
from hpcrun.shared_dataclass import asdict, dataclass
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths

# Looks in `recovery.hang_after`, and the most seconds between two.
_LOOKS = 30
LOOK_LATEST = 10.0
_SECTOR = 512
_MOST_ENVIRONMENT = 1 << 21
# `torch.utils.file_baton`, in the form of faulthandler.
_WAITS_FOR_BUILD = re.compile(r'/file_baton[.]py", line \d+ in wait')


@dataclass(frozen=True)
class Process:
    """A process of a rank."""

    pid: int
    parent: int
    group: int
    state: str
    processor: int
    """Clock ticks, of its children that ended and were waited for too."""


def look_every(hang_after: float) -> float:
    """Return the seconds between two looks."""
    return min(LOOK_LATEST, max(INTERVAL, hang_after / _LOOKS)) if hang_after else LOOK_LATEST


class ProgramActivity:
    """The agent's side; ``leads`` says that the leader of a rank is not the program itself."""

    def __init__(self, hang_after: float, *, leads: bool, root: Path = Path("/")) -> None:
        self._watches, self._leads, self._root = bool(hang_after), leads, root
        self._every = look_every(hang_after)
        self._look_at = 0.0
        self._told: dict[int, RankActivity] = {}
        self._counters: Counters | None = None

    def begin(self, interface: str | None, hca: str | None) -> None:
        """Watch the ranks of a new attempt, and this node's traffic; see `Counters`."""
        self._told, self._look_at = {}, 0.0
        self._counters = Counters(interface, hca, self._root)

    def changed(
        self, scratch: Path, sessions: Collection[int], output: Mapping[int, int], gpu: int = 0
    ) -> dict[str, Any]:
        """Return what has changed since the last call, for a ``pulse``; empty between two looks.

        Ranks with a session report on themselves. ``output`` has the bytes that each rank wrote,
        ``gpu`` what the GPUs have done (of `NodeTraffic`).
        """
        if not self._watches or time.monotonic() < self._look_at:
            return {}
        self._look_at = time.monotonic() + self._every
        leaders = _leaders(scratch, sessions)
        found = {
            rank: activity(each, leaders[rank], output.get(rank, 0), self._leads, self._root)
            for rank, each in processes(leaders, self._root).items()
        }
        news = {rank: one for rank, one in found.items() if self._told.get(rank) != one}
        self._told = found
        if not found:
            return {}
        return {
            "programs": {rank: asdict(one) for rank, one in news.items()},
            "traffic": asdict(self._traffic(gpu)),
        }

    def processes(self, scratch: Path, sessions: Collection[int]) -> dict[int, list[int]]:
        """Return the ids of each rank's program, parents before children; without sessions."""
        if not self._watches:
            return {}
        leaders = _leaders(scratch, sessions)
        return {
            rank: [one.pid for one in _by_age(found) if not self._leads or one.pid != leaders[rank]]
            for rank, found in processes(leaders, self._root).items()
        }

    def locks(self, scratch: Path, stacks: Mapping[int, str]) -> dict[int, str]:
        """Return, for ranks that wait for a build by their stacks, a lock that nobody holds."""
        waiting = [rank for rank, text in stacks.items() if _WAITS_FOR_BUILD.search(text)]
        programs = self.processes(scratch, ())
        found = {}
        for rank in waiting:
            own = _environment(programs.get(rank, ()), ScratchPaths(scratch))
            if locks := build_locks.left_behind(own):
                found[rank] = str(locks[0])
        return found

    def _traffic(self, gpu: int) -> NodeTraffic:
        moved = self._counters.moved() if self._counters else {}
        network = moved.get("network", 0)
        storage = network + moved.get("fabric", 0) + _disks(self._root)
        return NodeTraffic(moved.get("fabric", network), storage, gpu)


def _leaders(scratch: Path, sessions: Collection[int]) -> dict[int, int]:
    found = rank_processes.leaders(scratch)
    return {rank: pid for rank, pid in found.items() if rank not in sessions}


def _environment(program: Collection[int], scratch: ScratchPaths) -> dict[str, str]:
    """Return the environment of a rank's program; of a function, what its worker gave itself."""
    found = dict(os.environ)
    if scratch.extensions.is_dir():
        found[build_locks.VARIABLE] = str(scratch.extensions)
    for pid in program:
        with contextlib.suppress(OSError):
            data = files.read_bytes(Path(f"/proc/{pid}/environ"), _MOST_ENVIRONMENT)
            pairs = (line.partition("=") for line in os.fsdecode(data).split("\0"))
            found.update({name: value for name, _, value in pairs})
            break
    return found


def processes(leaders: Mapping[int, int], root: Path = Path("/")) -> dict[int, list[Process]]:
    """Return the living processes of each rank, given rank -> its leader."""
    table = {one.pid: one for one in _all(root / "proc")} if leaders else {}
    rank_of = {pid: rank for rank, pid in leaders.items()}
    found: dict[int, list[Process]] = {rank: [] for rank in leaders}
    for one in table.values():
        rank = rank_of.get(one.group)
        above: Process | None = one
        for _ in range(len(table)):
            if rank is not None or above is None:
                break
            rank = rank_of.get(above.pid)
            above = table.get(above.parent)
        if rank is not None and one.state not in "ZX":
            found[rank].append(one)
    return found


def _by_age(found: Collection[Process]) -> list[Process]:
    """Return processes with parents before their children."""
    parents = {one.pid: one.parent for one in found}
    return sorted(found, key=lambda one: (len(list(_ancestors(one.pid, parents))), -one.pid))


def _all(proc: Path) -> Iterator[Process]:
    for path in process_directories(proc):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = process_stat(path)
            ticks = sum(map(int, fields[11:15]))
            yield Process(int(path.name), int(fields[1]), int(fields[2]), fields[0], ticks)


def activity(
    found: Collection[Process], leader: int, output: int, leads: bool, root: Path = Path("/")
) -> RankActivity:
    """Return the activity of a rank's processes; with ``leads``, without the leader's own."""
    program = [one for one in found if not leads or one.pid != leader]
    return RankActivity(
        output=output,
        processor=sum(one.processor for one in program),
        io=sum(_bytes(root / "proc" / str(one.pid)) for one in program),
        state=_state(program),
    )


def _state(program: Collection[Process]) -> str:
    if not program:
        return GONE
    stopped = {one.pid for one in program if one.state == STOPPED_STATE}
    if stopped:
        parents = {one.pid: one.parent for one in program}
        # A shell above a stopped process waits for it, and so does a data loader below one.
        waiting = {above for pid in stopped for above in _ancestors(pid, parents)}
        waiting |= {pid for pid in parents if not stopped.isdisjoint(_ancestors(pid, parents))}
        return STOPPED_STATE if parents.keys() <= stopped | waiting else PARTLY_STOPPED
    return STORAGE_STATE if any(one.state == STORAGE_STATE for one in program) else SLEEPING


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    for _ in range(len(parents)):
        if (pid := parents.get(pid, 0)) == 0:
            return
        yield pid


def _bytes(process: Path) -> int:
    """Return the bytes that a process has read and written."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (process / "io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
    return 0


def _disks(root: Path) -> int:
    """Return the bytes that were read from and written to disks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in (root / "proc/diskstats").read_text().splitlines()]
        return sum(_SECTOR * (int(fields[5]) + int(fields[9])) for fields in lines)
    return 0
