"""A node's copies: all sources of its run are copied, or read where they are, and it says which.

The frozen environment, where the run has one, comes first; without it there are no ranks. A thread
copies, so that the agent goes on hearing its supervisor. Each source then has a place: that of its
copy, or its own on shared storage where there is none, so that programs find it in both cases.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hpcrun import mounts
from hpcrun.errors import HpcrunError
from hpcrun.run.copies.copied_files import (
    CopyMeter,
    CopySource,
    CopyStopped,
    SourceChanged,
    SourceFile,
)
from hpcrun.run.copies.environment_copy import EnvironmentCopy
from hpcrun.run.copies.shared_copy import SharedCopy
from hpcrun.run.node import cgroup
from hpcrun.run.protocol.output import say
from hpcrun.shared_dataclass import asdict, dataclass, field
from hpcrun.text import one_line, size

# Of the disk's size, and at most: what is left free for checkpoints and what the program writes.
_LEFT_FREE, _LEFT_FREE_MOST = 0.05, 10_000_000_000
# Seconds between two lines about a copy; later, a part of the time that it has taken.
SAY_EVERY, _SAY_PART = 2.5, 0.05
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_STOPS_WITHIN = 5.0


class _NoRoom(OSError):
    """The node's disk has too little room for a copy."""


class CopiedData(Protocol):
    """Data of a feature that nodes copy, and how their ranks find it."""

    def sources(self) -> Sequence[CopySource]:
        """Return what is to be copied, in order; raise HpcrunError if it is not there."""

    def show(self, places: Mapping[CopySource, Path]) -> None:
        """Let ranks find each source at its place on this node; raise OSError."""


@dataclass
class NodeCopyReport:
    """Tells how the copies of a node ended."""

    files: int = 0
    bytes: int = 0
    """Of all copies that its ranks read."""
    copied: int = 0
    """Bytes that were copied for this attempt; the others were there."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Sources that its ranks read where they are, and why."""


class DataCopies:
    """Copies for one agent; all of its methods are called by the agent's own thread."""

    def __init__(
        self,
        base: Path,
        data: Sequence[CopiedData],
        environment: EnvironmentCopy | None = None,
        about: Callable[[BaseException], str] = lambda _: "",
    ) -> None:
        """``base`` holds the copies; ``about`` returns what an error is about."""
        self._base, self._data = base, data
        self._environment, self._about_of, self._about = environment, about, ""
        self._copies: dict[CopySource, SharedCopy] = {}
        self._meter = CopyMeter()
        self._report = NodeCopyReport()
        self._problem: str | None = None
        self._thread: threading.Thread | None = None
        self._began = self._said = 0.0
        self._has_answered = True

    def room(self) -> tuple[int, int] | None:
        """Return the bytes that the frozen environment's copy lacks, and that the disk has for it.

        None without such an environment, or where the disk does not tell.
        """
        with contextlib.suppress(OSError):
            if self._environment is not None:
                return self._environment.bytes_missing(), max(0, self._disk()[0])
        return None

    def begin(self) -> None:
        """Begin to copy, for the attempt that is being prepared; raise HpcrunError."""
        self.stop()
        if self._thread is not None:
            raise HpcrunError("an earlier attempt's copy of its data still waits for the storage")
        self._meter, self._report, self._problem = CopyMeter(), NodeCopyReport(), None
        self._about = ""
        self._began = self._said = time.monotonic()
        self._has_answered = False
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)
        self._thread.start()

    def turn(self, send: Callable[[dict[str, Any]], object]) -> None:
        """Send how far the copy is, now and then, and once what it came to."""
        if self._has_answered or self._thread is None:
            return
        now, meter = time.monotonic(), self._meter
        if not self._thread.is_alive():
            self._has_answered = True
            if self._problem is not None:
                send({"type": "failed", "message": self._problem, "about": self._about})
            else:
                send({"type": "copied", "report": asdict(self._report)})
        elif now - self._said >= max(SAY_EVERY, _SAY_PART * (now - self._began)):
            self._said = now
            done = f"{size(meter.done)} of {size(meter.total)}" if meter.total else "lists files"
            say(f"stages data: {done}, {now - self._began:.0f} s so far")
            send({"type": "copying", "done": meter.done, "total": meter.total})

    def stop(self) -> None:
        """End a copy that is under way; what is complete of it is kept."""
        if self._thread is not None:
            self._meter.stop.set()
            self._thread.join(_STOPS_WITHIN)
            self._has_answered = True
            if not self._thread.is_alive():
                self._thread = None

    def close(self) -> None:
        """Stop, and let go of all copies; those that no other job uses are removed."""
        self.stop()
        for copy in self._copies.values():
            copy.release()
        self._copies.clear()
        if self._environment is not None:
            self._environment.release()

    def _work(self) -> None:
        try:
            self._provide_all()
        except CopyStopped:
            self._problem = "the copy was stopped"
        except HpcrunError as error:
            self._problem, self._about = error.message, self._about_of(error)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self._problem = f"copying failed: {type(error).__name__}: {error}"
            self._about = self._about_of(error)
        self._report.seconds = round(time.monotonic() - self._began, 3)

    def _provide_all(self) -> None:
        wanted = [(one, {source: source.files() for source in one.sources()}) for one in self._data]
        sizes = (file.size for _, listed in wanted for own in listed.values() for file in own)
        self._meter.total = sum(sizes)
        self._provide_environment()
        for data, listed in wanted:
            places = {}
            for source, own in listed.items():
                copy = self._provided(source, own)
                places[source] = Path(source.path) if copy is None else copy.path
            data.show(places)
        self._report.copied = self._meter.copied

    def _provide_environment(self) -> None:
        """Have the copy of the frozen environment, without which there are no ranks."""
        copy = self._environment
        if copy is None:
            return
        self._meter.total += copy.bytes
        try:
            waits, room = partial(self._waits, "the environment"), self._environment_room
            how = copy.provide(self._meter, waits, partial(room, copy))
            copy.remove_sent()
        except OSError as error:
            raise HpcrunError(
                f"the frozen environment cannot be unpacked in {self._base}: "
                f"{error.strerror or error}; TMPDIR names another place"
            ) from error
        self._report.files += copy.files
        self._report.bytes += copy.bytes
        if how != "copied":
            say(f"the frozen environment, {size(copy.bytes)}, is on this node already")

    def _provided(self, source: CopySource, listed: list[SourceFile]) -> SharedCopy | None:
        """Return the copy of a source; None, with a note, where its ranks read it as it is."""
        for last in (False, True):
            copy, bytes_ = self._copy_of(source, listed), sum(file.size for file in listed)
            done = self._meter.done
            try:
                how = copy.provide(
                    self._meter, partial(self._waits, source.name), partial(self._room, copy)
                )
            except SourceChanged as error:
                self._meter.done = done
                if last:
                    self._note(source, bytes_, f"{error.message}, twice")
                    return None
                say(f"{one_line(error.message)}; it is copied again")
                listed = source.files()
            except OSError as error:
                self._meter.done = done
                self._note(source, bytes_, error.strerror or str(error))
                return None
            else:
                self._report.files += len(listed)
                self._report.bytes += bytes_
                if how != "copied":
                    say(f"{one_line(source.name)}: {size(bytes_)} are on this node already")
                return copy
        raise AssertionError("the last try returns")

    def _copy_of(self, source: CopySource, listed: list[SourceFile]) -> SharedCopy:
        """Return the copy of these files, the one that is held already where they are the same."""
        copy, held = SharedCopy(self._base, source, listed), self._copies.get(source)
        if held is not None and held.path == copy.path:
            return held
        if held is not None:
            held.release()
        self._copies[source] = copy
        return copy

    def _note(self, source: CopySource, bytes_: int, why: str) -> None:
        """Tell that a source is read where it is."""
        self._meter.done += bytes_
        note = one_line(f"{source.path} is not copied, and read where it is: {why}")
        say(note)
        self._report.notes.append(note)

    def _waits(self, name: str) -> None:
        say(f"waits for another job of yours on this node, which copies {one_line(name)}")

    def _environment_room(self, copy: EnvironmentCopy) -> None:
        try:
            self._room(copy)
        except _NoRoom:
            copy.remove_sent()
            self._room(copy)

    def _room(self, copy: SharedCopy) -> None:
        """Raise _NoRoom where the disk would be left with less than it should keep."""
        wanted, (left, where) = copy.bytes_missing(), self._disk()
        if wanted > left:
            raise _NoRoom(f"it has {size(wanted)}, and {where} has room for {size(max(0, left))}")

    def _disk(self) -> tuple[int, str]:
        """Return the bytes that copies may take of the disk, and what that is."""
        base = self._base
        usage = shutil.disk_usage(base)
        left = usage.free - int(min(_LEFT_FREE * usage.total, _LEFT_FREE_MOST))
        kind = mounts.of(str(base.resolve()), mounts.read())
        where = str(base)
        if kind is not None and kind.kind in _IN_MEMORY:
            # What is written there is the job's memory.
            where = f"{base}, which is memory ({kind.kind}),"
            memory = cgroup.memory_left()
            left = left if memory is None else min(left, memory // 2)
        return left, where
