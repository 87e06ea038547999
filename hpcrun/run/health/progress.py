"""Progress of a rank: its step, its phase, and whether its main thread moves.

The main thread stores its step and phase in a small node-local file that is mapped into memory,
which costs nothing. A second thread samples once a second whether the main thread is still at the
same place of the program. The agent reads both, and the kernel's state of the process: so it
notices a rank that is stopped, or stuck in a call that never returns, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import mmap
import os
import re
import signal
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from hpcrun.host import process_stat
from hpcrun.run.protocol.output import tell
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths

# pid, step, phase, moves, looks, waits, loads
_FORM = struct.Struct("<qqqqqqq")
# Bytes of a rank's stacks that are kept.
_MOST_STACKS = 1 << 20
_LOOK_EVERY = 1.0
_DEPTH = 24
# Free for programs on Linux, and unusual.
STACKS_SIGNAL = signal.SIGRTMIN + 7
# Files of the functions that wait for other ranks; matched against paths in stack traces.
COLLECTIVE = re.compile(
    r"/torch/distributed/|/deepspeed/comm/|/hpcrun/run/rank/(?:peer_messages|async_allreduce)[.]py"
)
# Files of what reads data; a dataset that the rank reads by itself is called by them.
_LOADER = re.compile(r"/torch/utils/data/|/hpcrun/run/data/sample_loader")

GONE = "X"
STARTING, STEPPING, SAVING, RESTORING, ENDING = range(5)
PHASES = ("starting", "stepping", "saving", "restoring", "ending")


@dataclass(frozen=True)
class RankProgress:
    """A rank at one moment."""

    pid: int
    """The process with the session: the rank, or the program that it started."""
    step: int
    """Finished optimizer steps."""
    phase: int
    """Index into `PHASES`."""
    moves: int
    """Samples that found the main thread at another place than a second before."""
    looks: int
    """All samples; does not grow while something keeps the interpreter busy."""
    state: str
    """The kernel's letter, such as ``S``; ``T`` for a stopped process, `GONE` for an ended one."""
    processor: int
    """Clock ticks (hundredths of a second) of processor time of the main thread, and where that
    stands still, of what the rank started."""
    waits: int = 0
    """Samples that found the main thread in a collective."""
    loads: int = 0
    """Samples that found it in a loader of data."""


class ProgressWriter:
    """The rank's side; of several processes of a rank, the first one alive writes.

    Outside hpcrun there is no node-local directory ``scratch``, and nobody reads.
    """

    def __init__(self, scratch: Path | None, rank: int) -> None:
        self._step, self.phase = 0, STARTING
        self._moves = self._looks = self._waits = self._loads = 0
        self._memory: mmap.mmap | None = None
        if scratch is None:
            return
        try:
            if not _is_taken(ScratchPaths(scratch).progress(rank)):
                self._begin(scratch, rank)
        except (OSError, ValueError) as error:
            tell(f"hangs of this rank will not be noticed: {error}")

    def _begin(self, scratch: Path, rank: int) -> None:
        # Agents import this module, too.
        from hpcrun.run.health import native_stack

        self._pid = os.getpid()
        native_stack.allow()
        self._watched = threading.main_thread().ident
        self._stacks = open(ScratchPaths(scratch).stacks(rank), "wb")  # noqa: SIM115
        # Before the file is there: its owner is sent this signal, which would end it else.
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)
        path = ScratchPaths(scratch).progress(rank)
        new = path.with_suffix(f".{self._pid}")
        new.write_bytes(bytes(_FORM.size))
        with open(new, "r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), _FORM.size)
        self._store()
        new.rename(path)
        threading.Thread(target=self._watch, name="hpcrun-pulse", daemon=True).start()

    def write(self, phase: int, step: int | None = None) -> None:
        """Store the main thread's phase, and its step unless that is None."""
        self.phase = phase
        if step is not None:
            self._step = step
        self._store()

    @contextlib.contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """Be in this phase for the length of a block."""
        before = self.phase
        self.write(phase)
        try:
            yield
        finally:
            self.write(before)

    def _watch(self) -> None:
        before: object = None
        pause = threading.Event()
        assert self._watched is not None
        while not pause.wait(_LOOK_EVERY):
            frame = sys._current_frames().get(self._watched)
            now = _position(frame)
            self._moves += now != before
            self._waits += _is_in(COLLECTIVE, frame)
            self._loads += _is_in(_LOADER, frame)
            self._looks += 1
            before = now
            self._store()

    def _store(self) -> None:
        # A forked child's steps are not the rank's.
        if self._memory is not None and self._pid == os.getpid():
            counts = (self._moves, self._looks, self._waits, self._loads)
            self._memory[:] = _FORM.pack(self._pid, self._step, self.phase, *counts)


@functools.cache
def writer(scratch: Path | None, rank: int) -> ProgressWriter:
    """Return this process's one writer."""
    return ProgressWriter(scratch, rank)


def _is_taken(path: Path) -> bool:
    """Check whether another living process of the rank owns the file."""
    try:
        pid = _FORM.unpack(files.read_bytes(path, _FORM.size))[0]
    except FileNotFoundError:
        return False
    return pid != os.getpid() and _stat(pid) != [GONE]


def _stat(pid: int) -> list[str]:
    """Return a main thread's ``stat`` from its state on; only `GONE` if it has ended."""
    try:
        fields = process_stat(Path(f"/proc/{pid}/task/{pid}"))
    except OSError:
        return [GONE]
    return [GONE] if fields[0] in "ZX" else fields


def _position(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Return a key for where in the program a thread is."""
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < _DEPTH:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _is_in(place: re.Pattern[str], frame: FrameType | None) -> bool:
    """Check whether a thread is in a function of these files, or in what one called."""
    while frame is not None and not place.search(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def read(scratch: Path) -> dict[int, RankProgress]:
    """Return the progress of each rank of this node that has written some, ended ones included."""
    found: dict[int, RankProgress] = {}
    for rank, path in ScratchPaths(scratch).progresses():
        with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            data = files.read_bytes(path, _FORM.size)
            pid, step, phase, moves, looks, waits, loads = _FORM.unpack(data)
            if phase not in range(len(PHASES)):
                continue
            fields = _stat(pid)
            processor = 0 if fields == [GONE] else int(fields[11]) + int(fields[12])
            counts = (processor, waits, loads)
            found[rank] = RankProgress(pid, step, phase, moves, looks, fields[0], *counts)
    return found


def living(scratch: Path) -> dict[int, RankProgress]:
    """Return the progress of the ranks that have not ended."""
    return {rank: found for rank, found in read(scratch).items() if found.state != GONE}


def ask_for_stacks(scratch: Path) -> None:
    """Have each rank of this node write its Python stacks; one that is stopped cannot."""
    for found in living(scratch).values():
        with contextlib.suppress(OSError):
            os.kill(found.pid, STACKS_SIGNAL)


def stacks_written(scratch: Path) -> dict[int, int]:
    """Return the bytes of stacks that each rank has written so far."""
    found: dict[int, int] = {}
    for rank, path in ScratchPaths(scratch).all_stacks():
        with contextlib.suppress(OSError):
            found[rank] = path.stat().st_size
    return found


def stacks(scratch: Path, since: Mapping[int, int] | None = None) -> dict[int, str]:
    """Return the Python stacks that each rank has written; the most recent call first.

    ``since`` has what `stacks_written` returned before the ranks were asked.
    """
    found: dict[int, str] = {}
    for rank, path in ScratchPaths(scratch).all_stacks():
        with contextlib.suppress(OSError):
            new = max(0, path.stat().st_size - (since or {}).get(rank, 0))
            text = files.read_tail(path, min(_MOST_STACKS, new)).decode(errors="replace")
            if text:
                found[rank] = text
    return found


def ended_too_early(found: dict[int, RankProgress]) -> list[int]:
    """Return the ranks that have ended without announcing it."""
    gone = {rank: one.phase for rank, one in found.items() if one.state == GONE}
    return [rank for rank, phase in gone.items() if phase != ENDING]
