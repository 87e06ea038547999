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
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# step, phase, moves, looks
_FORM = struct.Struct("<qqqq")
_LOOK_EVERY = 1.0
_DEPTH = 24
# Free for programs on Linux, and nobody's habit.
STACKS_SIGNAL = signal.SIGRTMIN + 7

STARTING, STEPPING, SAVING, RESTORING, ENDING = range(5)
PHASES = ("starting", "stepping", "saving", "restoring", "ending")


@dataclass(frozen=True)
class Pulse:
    """What is known of a rank at one moment.

    Attributes
    ----------
    step
        Finished optimizer steps.
    phase
        Index into `PHASES`.
    moves
        How often the main thread was seen at another place of the program than a second before.
    looks
        How often that was looked at; does not grow while something keeps the interpreter busy.
    state
        The kernel's letter for the process, such as ``S``; ``T`` for one that was stopped.
    processor
        Clock ticks (hundredths of a second) of processor time that the main thread has used.
    """

    step: int
    phase: int
    moves: int
    looks: int
    state: str
    processor: int


class Heart:
    """The rank's side.

    Parameters
    ----------
    scratch
        The node-local directory of the attempt; None outside hpcrun, where nobody listens.
    """

    def __init__(self, scratch: Path | None, rank: int) -> None:
        self._step, self._phase, self._moves, self._looks = 0, STARTING, 0, 0
        self._memory: mmap.mmap | None = None
        if scratch is not None:
            self._begin(scratch, rank)

    def _begin(self, scratch: Path, rank: int) -> None:
        self._watched = threading.get_ident()
        self._stacks = open(scratch / f"rank-{rank}.stacks", "wb")  # noqa: SIM115
        # Before there is a pulse: who has one is sent this signal, which else would end it.
        faulthandler.register(STACKS_SIGNAL, self._stacks, all_threads=True)
        path = scratch / f"rank-{rank}.pulse"
        path.write_bytes(bytes(_FORM.size))
        with open(path, "r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), _FORM.size)
        threading.Thread(target=self._watch, name="hpcrun-pulse", daemon=True).start()

    def beat(self, phase: int, step: int | None = None) -> None:
        """Say where the main thread is from now on."""
        self._phase = phase
        if step is not None:
            self._step = step
        self._store()

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
        while not pause.wait(_LOOK_EVERY):
            now = _place(sys._current_frames().get(self._watched))
            self._moves += now != before
            self._looks += 1
            before = now
            self._store()

    def _store(self) -> None:
        if self._memory is not None:
            self._memory[:] = _FORM.pack(self._step, self._phase, self._moves, self._looks)


def _place(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """Where in the program a thread is."""
    found: list[tuple[int, int]] = []
    while frame is not None and len(found) < _DEPTH:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def read(scratch: Path) -> dict[int, Pulse]:
    """Rank -> its pulse, of those ranks of this node that have one and live."""
    found: dict[int, Pulse] = {}
    for path in scratch.glob("rank-*.pulse"):
        with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            rank = int(path.stem.removeprefix("rank-"))
            pid = (scratch / f"rank-{rank}.pid").read_text()
            text = Path(f"/proc/{int(pid)}/task/{int(pid)}/stat").read_text(errors="replace")
            fields = text[text.rindex(")") + 2 :].split()
            if fields[0] not in "ZX":
                step, phase, moves, looks = _FORM.unpack(path.read_bytes())
                processor = int(fields[11]) + int(fields[12])
                found[rank] = Pulse(step, phase, moves, looks, fields[0], processor)
    return found


def ask_for_stacks(scratch: Path) -> None:
    """Have each rank of this node write down where its threads are; one that is stopped cannot."""
    for rank in read(scratch):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((scratch / f"rank-{rank}.pid").read_text()), STACKS_SIGNAL)


def stacks(scratch: Path) -> dict[int, str]:
    """Rank -> what it has written down of its Python threads; the most recent call first."""
    found: dict[int, str] = {}
    for path in scratch.glob("rank-*.stacks"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(errors="replace")
            if text:
                found[int(path.stem.removeprefix("rank-"))] = text
    return found
