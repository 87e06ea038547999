"""The processes of a node's ranks, so that its agent can end them.

Each rank leads a process group, which finds its children even when the rank itself is dead: a
program whose worker was killed, or a data loader, holds memory of a GPU as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from hpcrun.host import process_directories, process_stat, start_ticks
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths

SCRATCH_VARIABLE = "HPCRUN_SCRATCH"
# A public name of one start of a job, which all of its processes inherit.
START_VARIABLE = "HPCRUN_START"
# The name that a supervisor's processes have which this one's takes the place of.
FORMER_VARIABLE = "HPCRUN_FORMER_START"
_PROC = Path("/proc")
# Seconds in which processes that were sent SIGKILL end.
_FORMER_TAKES = 5.0
# Seconds in which helpers of a program that has ended end, and bytes of a command that is told.
_HELPERS_TAKE, _MOST_COMMAND = 2.0, 4_096
# Of a file with a process id, or an exit code.
_MOST_BYTES = 100
# Seconds within which a warm rank that was called has taken its place.
COMES_WITHIN = 15.0


def register(scratch: Path, rank: int) -> None:
    """Write this process's id as that of a rank's leader.

    What a leader before it in the attempt has left is ended: it would hold ports and memory.
    """
    lead_group()
    with contextlib.suppress(OSError, ValueError):
        _end_group(scratch, leader(scratch, rank))
    ScratchPaths(scratch).pid(rank).write_text(str(os.getpid()))


def _end_group(scratch: Path, group: int) -> None:
    deadline = time.monotonic() + _FORMER_TAKES
    while group != os.getpgrp() and time.monotonic() < deadline:
        left = [pid for of, pid, _ in _members(scratch, {group}) if of == group]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def lead_group() -> None:
    """Make this process the leader of its own process group."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def leader(scratch: Path, rank: int) -> int:
    """Return the process id of a rank's leader; raise OSError or ValueError if it has none."""
    return int(files.read_bytes(ScratchPaths(scratch).pid(rank), _MOST_BYTES))


def leaders(scratch: Path) -> dict[int, int]:
    """Return rank -> the process id of its leader, for the ranks of this node that have one."""
    found = {}
    for rank, path in ScratchPaths(scratch).pids():
        with contextlib.suppress(OSError, ValueError):
            found[rank] = int(files.read_bytes(path, _MOST_BYTES))
    return found


def processor(scratch: Path, own: Mapping[int, int]) -> dict[int, int]:
    """Return the processor time, in clock ticks, of all processes of ranks' groups but one each.

    ``own`` are ranks, each with the process id that does not count.
    """
    groups: dict[int, int] = {}
    for rank in own:
        with contextlib.suppress(OSError, ValueError):
            groups[leader(scratch, rank)] = rank
    ticks = dict.fromkeys(groups.values(), 0)
    for process in process_directories(_PROC) if groups else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = process_stat(process)
            of = groups.get(int(fields[2]))
            if of is not None and int(process.name) != own[of]:
                ticks[of] += int(fields[11]) + int(fields[12])
    return ticks


def kill(scratch: Path) -> None:
    """Send SIGKILL to the ranks of this node and to all that they started."""
    groups = {*leaders(scratch).values()}
    for group, pid, _ in list(_members(scratch, groups)):
        with contextlib.suppress(OSError):
            if group in groups:
                os.killpg(group, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


def end(scratch: Path, ranks: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to the groups of these ranks; those that are gone have none."""
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError):
            os.killpg(leader(scratch, rank), number)


def pass_on(scratch: Path, number: int) -> None:
    """Send a signal to what an ended parent has left of this process's group, and wait for its end.

    Such is the program of a shell without a trap. What that started in turn is not asked.
    """
    group, asked = os.getpgrp(), {os.getpid()}
    while left := {pid: up for of, pid, up in _members(scratch, {group}) if of == group}:
        if left.keys() == {os.getpid()}:
            return
        for pid in [pid for pid in left if left[pid] not in left and pid not in asked]:
            asked.add(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(0.05)


def left_running(scratch: Path, *, only_group: bool) -> str | None:
    """Return the command of what this process's program has left running; None if of nothing.

    Helpers end a moment after their program. ``only_group``: others on this node are other ranks'.
    """
    group, deadline = os.getpgrp(), time.monotonic() + _HELPERS_TAKE
    while left := [
        pid
        for of, pid, _ in _members(scratch, {group})
        if pid != os.getpid() and (of == group or not only_group)
    ]:
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                words = files.read_bytes(_PROC / str(left[0]) / "cmdline", _MOST_COMMAND)
                return words.replace(b"\0", b" ").decode(errors="replace").strip()
        time.sleep(0.05)
    return None


def gone(scratch: Path, timeout: float) -> bool:
    """Wait at most so many seconds until no process of the ranks is left; return whether none is.

    A process that is gone holds no memory of a GPU.
    """
    groups = {*leaders(scratch).values()}
    deadline = time.monotonic() + timeout
    while next(_members(scratch, groups), None) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _members(scratch: Path, groups: set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield group, id and parent of each living process in a rank's group or with its environment.

    All are this user's.
    """
    names = (os.environ.get(name) for name in (START_VARIABLE, FORMER_VARIABLE))
    starts = {f"{START_VARIABLE}={name}".encode() for name in names}
    place = f"{SCRATCH_VARIABLE}={scratch}".encode()
    for process in process_directories(_PROC):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Root could read and end those of others, which anybody may start with such variables.
            if process.stat().st_uid != os.geteuid():
                continue
            state, parent, group = process_stat(process)[:3]
            if state in "ZX":
                continue
            variables = (process / "environ").read_bytes().split(b"\0")
            # Ids are reused: a group counts only with the name of this start of the job.
            if place in variables or (int(group) in groups and not starts.isdisjoint(variables)):
                yield int(group), int(process.name), int(parent)


def write_end(scratch: Path, rank: int, code: int) -> None:
    """Write the exit code of this process, a rank's. Best effort on a full disk."""
    with contextlib.suppress(OSError):
        files.write_bytes(ScratchPaths(scratch).end(rank), str(code).encode())


class RankEnds:
    """The ends of some ``ranks`` of this node, since they were called; told once each.

    They were warm under a supervisor that is lost, so that srun, which watches ranks, was lost with
    it. Their worker writes its exit code; one that is gone without was killed.
    """

    def __init__(self, scratch: Path, ranks: Collection[int]) -> None:
        self._scratch, self._living = scratch, {*ranks}
        self._until = time.monotonic() + COMES_WITHIN

    def news(self) -> dict[int, int | None]:
        """Return rank -> exit code of those that have ended since; None where it left none."""
        found = {}
        for rank in [*self._living]:
            try:
                lives = start_ticks(leader(self._scratch, rank)) is not None
            except (OSError, ValueError):
                lives = time.monotonic() < self._until
            if not lives:
                self._living.discard(rank)
                found[rank] = self._code(rank)
        return found

    def _code(self, rank: int) -> int | None:
        try:
            return int(files.read_bytes(ScratchPaths(self._scratch).end(rank), _MOST_BYTES))
        except (OSError, ValueError):
            return None
