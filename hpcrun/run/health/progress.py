"""Signs of life of a rank, for its agent: how far it is, in which phase, and whether it moves.

A rank's main thread says where it is by storing a few numbers into a small node-local file that is
mapped into memory, which costs nothing. A thread of its own looks once a second whether the main
thread is still at the same place of the program. The agent reads both, and what the kernel says of
the process; so it hears of a rank that is stopped, or stuck in a call that never returns, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpcrun.host import process_stat
from hpcrun.run.health import native_stack
from hpcrun.run.protocol.output import tell

# pid, step, phase, moves, looks, waits
_FORM = struct.Struct("<qqqqqq")
_LOOK_EVERY = 1.0
_DEPTH = 24
# Free for programs on Linux, and nobody's habit.
STACKS_SIGNAL = signal.SIGRTMIN + 7
# Files of the functions that wait for other ranks.
COLLECTIVE = re.compile(r"/torch/distributed/|/deepspeed/comm/")

GONE = "X"
STARTING, STEPPING, SAVING, RESTORING, ENDING = range(5)
PHASES = ("starting", "stepping", "saving", "restoring", "ending")


@dataclass(frozen=True)
class RankProgress:
    """What is known of a rank at one moment.

    Attributes
    ----------
    pid
        The process that has the session: the rank, or the program that it started.
    step
        Finished optimizer steps.
    phase
        Index into `PHASES`.
    moves
        How often the main thread was seen at another place of the program than a second before.
    looks
        How often that was looked at; does not grow while something keeps the interpreter busy.
    state
        The kernel's letter for the process, such as ``S``; ``T`` for one that was stopped, `GONE`
        for one that has ended.
    processor
        Clock ticks (hundredths of a second) of processor time that the main thread has used, and
        where that stands still, what the rank started.
    waits
        At how many of the looks the main thread was in a collective.
    """

    pid: int
    step: int
    phase: int
    moves: int
    looks: int
    state: str
    processor: int
    waits: int = 0


class ProgressWriter:
    """The rank's side: one a process, and of several processes of a rank the first that lives.

    Parameters
    ----------
    scratch
        The node-local directory of the attempt; None outside hpcrun, where nobody listens.
    """

    def __init__(self, scratch: Path | None, rank: int) -> None:
        self._step, self._phase = 0, STARTING
        self._moves = self._looks = self._waits = 0
        self._memory: mmap.mmap | None = None
        if scratch is None:
            return
        try:
            if not _is_taken(scratch / f"rank-{rank}.pulse"):
                self._begin(scratch, rank)
        except (OSError, ValueError) as error:
            tell(f"hangs of this rank will not be noticed: {error}")

    def _begin(self, scratch: Path, rank: int) -> None:
        self._pid = os.getpid()
        native_stack.allow()
        self._watched = threading.main_thread().ident
        self._stacks = open(scratch / f"rank-{rank}.stacks", "wb")  # noqa: SIM115
        # Before there is a pulse: who has one is sent this signal, which else would end it.
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)
        path = scratch / f"rank-{rank}.pulse"
        new = path.with_suffix(f".{self._pid}")
        new.write_bytes(bytes(_FORM.size))
        with open(new, "r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), _FORM.size)
        self._store()
        new.rename(path)
        threading.Thread(target=self._watch, name="hpcrun-pulse", daemon=True).start()

    def beat(self, phase: int, step: int | None = None) -> None:
        """Say where the main thread is from now on."""
        self._phase = phase
        if step is not None:
            self._step = step
        self._store()

    @property
    def phase(self) -> int:
        """Where the main thread said that it is."""
        return self._phase

    @contextlib.contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """Say what takes long, for as long as it does."""
        before = self._phase
        self.beat(phase)
        try:
            yield
        finally:
            self.beat(before)

    def _watch(self) -> None:
        before: object = None
        pause = threading.Event()
        assert self._watched is not None
        while not pause.wait(_LOOK_EVERY):
            frame = sys._current_frames().get(self._watched)
            now = _place(frame)
            self._moves += now != before
            self._waits += _in_collective(frame)
            self._looks += 1
            before = now
            self._store()

    def _store(self) -> None:
        # Not in a child that was forked: its steps are not the rank's.
        if self._memory is not None and self._pid == os.getpid():
            counts = (self._moves, self._looks, self._waits)
            self._memory[:] = _FORM.pack(self._pid, self._step, self._phase, *counts)


_hearts: dict[Path | None, ProgressWriter] = {}


def heart(scratch: Path | None, rank: int) -> ProgressWriter:
    """This process's heart, whoever asks."""
    if scratch not in _hearts:
        _hearts[scratch] = ProgressWriter(scratch, rank)
    return _hearts[scratch]


def _is_taken(path: Path) -> bool:
    """Whether another process of the rank has a pulse there, and lives."""
    try:
        pid = _FORM.unpack(path.read_bytes())[0]
    except FileNotFoundError:
        return False
    return pid != os.getpid() and _stat(pid) != [GONE]


def _stat(pid: int) -> list[str]:
    """What the kernel says of a main thread, from its state on; only `GONE` if it has ended."""
    try:
        fields = process_stat(Path(f"/proc/{pid}/task/{pid}"))
    except OSError:
        return [GONE]
    return [GONE] if fields[0] in "ZX" else fields


def _place(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Where in the program a thread is."""
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < _DEPTH:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _in_collective(frame: FrameType | None) -> bool:
    """Whether a thread waits for other ranks."""
    while frame is not None:
        if COLLECTIVE.search(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def read(scratch: Path) -> dict[int, RankProgress]:
    """Rank -> its pulse, of those ranks of this node that have one, or had until they ended."""
    found: dict[int, RankProgress] = {}
    for path in scratch.glob("rank-*.pulse"):
        with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            pid, step, phase, moves, looks, waits = _FORM.unpack(path.read_bytes())
            fields = _stat(pid)
            rank = int(path.stem.removeprefix("rank-"))
            processor = 0 if fields == [GONE] else int(fields[11]) + int(fields[12])
            found[rank] = RankProgress(pid, step, phase, moves, looks, fields[0], processor, waits)
    return found


def living(scratch: Path) -> dict[int, RankProgress]:
    """As `read`, without those that have ended."""
    return {rank: found for rank, found in read(scratch).items() if found.state != GONE}


def ask_for_stacks(scratch: Path) -> None:
    """Have each rank of this node write down where its threads are; one that is stopped cannot."""
    for found in living(scratch).values():
        with contextlib.suppress(OSError):
            os.kill(found.pid, STACKS_SIGNAL)


def stacks(scratch: Path) -> dict[int, str]:
    """Rank -> what it has written down of its Python threads; the most recent call first."""
    found: dict[int, str] = {}
    for path in scratch.glob("rank-*.stacks"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(errors="replace")
            if text:
                found[int(path.stem.removeprefix("rank-"))] = text
    return found
