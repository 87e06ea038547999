"""A node's staging: all sources of its run are copied, or read where they are, and it says which.

The frozen environment, where the run has one, comes first; without it there are no ranks. A thread
copies, so that the agent goes on hearing its supervisor. The directory of what is staged
has a link for each source: to its copy, or to shared storage where there is none, so that programs
find it by one path in both cases.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import mounts
from hpcrun.errors import HpcrunError
from hpcrun.run.node import cgroup
from hpcrun.run.protocol.output import say
from hpcrun.run.staging.copied_files import CopyMeter, SourceChanged, StagingStopped
from hpcrun.run.staging.environment_copy import EnvironmentCopy
from hpcrun.run.staging.shared_copy import SharedCopy
from hpcrun.state import files, staged_sources
from hpcrun.state.node_layout import NodePaths
from hpcrun.state.staged_sources import SourceFile, StagedSource
from hpcrun.text import one_line, size

# Of the disk's size, and at most: what is left free for checkpoints and what the program writes.
_LEFT_FREE, _LEFT_FREE_MOST = 0.05, 10_000_000_000
# Seconds between two lines about a copy; later, a part of the time that it has taken.
SAY_EVERY, _SAY_PART = 2.5, 0.05
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_STOPS_WITHIN = 5.0


class _NoRoom(OSError):
    """The node's disk has too little room for a copy."""


@dataclass
class StagingReport:
    """Tells how the staging of a node ended."""

    files: int = 0
    bytes: int = 0
    """Of all copies that its ranks read."""
    copied: int = 0
    """Bytes that were copied for this attempt; the others were there."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Sources that its ranks read where they are, and why."""


class NodeStaging:
    """Stages for one agent; all of its methods are called by the agent's own thread."""

    def __init__(
        self,
        directory: Path,
        patterns: Sequence[str],
        environment: EnvironmentCopy | None = None,
        about: Callable[[BaseException], str] = lambda _: "",
    ) -> None:
        """``about`` returns what an error is about, for the supervisor."""
        self._paths, self._patterns = NodePaths(directory), patterns
        self._environment, self._about_of, self._about = environment, about, ""
        self._base = directory.parent
        self._copies: dict[StagedSource, SharedCopy] = {}
        self._meter = CopyMeter()
        self._report = StagingReport()
        self._problem: str | None = None
        self._thread: threading.Thread | None = None
        self._began = self._said = 0.0
        self._has_answered = True

    def begin(self) -> None:
        """Begin to stage, for the attempt that is being prepared; raise HpcrunError."""
        self.stop()
        if self._thread is not None:
            raise HpcrunError("an earlier attempt's copy of its data still waits for the storage")
        self._meter, self._report, self._problem = CopyMeter(), StagingReport(), None
        self._about = ""
        self._began = self._said = time.monotonic()
        self._has_answered = False
        self._thread = threading.Thread(target=self._work, name="staging", daemon=True)
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
                send({"type": "staged", "report": asdict(self._report)})
        elif now - self._said >= max(SAY_EVERY, _SAY_PART * (now - self._began)):
            self._said = now
            done = f"{size(meter.done)} of {size(meter.total)}" if meter.total else "lists files"
            say(f"stages data: {done}, {now - self._began:.0f} s so far")
            send({"type": "staging", "done": meter.done, "total": meter.total})

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
            self._stage()
        except StagingStopped:
            self._problem = "staging was stopped"
        except HpcrunError as error:
            self._problem, self._about = error.message, self._about_of(error)
        except Exception as error:
            traceback.print_exc()
            self._problem = f"staging failed: {type(error).__name__}: {error}"
            self._about = self._about_of(error)
        self._report.seconds = round(time.monotonic() - self._began, 3)

    def _stage(self) -> None:
        sources = staged_sources.find(self._patterns)
        listed = [source.files() for source in sources]
        self._meter.total = sum(file.size for own in listed for file in own)
        self._provide_environment()
        place = self._paths.staged
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for source, own in zip(sources, listed, strict=True):
            copy = self._provided(source, own)
            (place / source.name).symlink_to(source.path if copy is None else copy.path)
        files.write_json(self._paths.staged_list, {one.path: one.name for one in sources})
        self._report.copied = self._meter.copied

    def _provide_environment(self) -> None:
        """Have the copy of the frozen environment, without which there are no ranks."""
        copy = self._environment
        if copy is None:
            return
        self._meter.total += copy.bytes
        try:
            how = copy.provide(
                self._meter, partial(self._waits, "the environment"), partial(self._room, copy)
            )
        except OSError as error:
            raise HpcrunError(
                f"the frozen environment cannot be unpacked in {self._base}: "
                f"{error.strerror or error}; TMPDIR names another place"
            ) from error
        self._report.files += copy.files
        self._report.bytes += copy.bytes
        if how != "copied":
            say(f"the frozen environment, {size(copy.bytes)}, is on this node already")

    def _provided(self, source: StagedSource, listed: list[SourceFile]) -> SharedCopy | None:
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

    def _copy_of(self, source: StagedSource, listed: list[SourceFile]) -> SharedCopy:
        """Return the copy of these files, the one that is held already where they are the same."""
        copy, held = SharedCopy(self._base, source, listed), self._copies.get(source)
        if held is not None and held.path == copy.path:
            return held
        if held is not None:
            held.release()
        self._copies[source] = copy
        return copy

    def _note(self, source: StagedSource, bytes_: int, why: str) -> None:
        """Tell that a source is read where it is."""
        self._meter.done += bytes_
        note = one_line(f"{source.path} is not copied, and read where it is: {why}")
        say(note)
        self._report.notes.append(note)

    def _waits(self, name: str) -> None:
        say(f"waits for another job of yours on this node, which copies {one_line(name)}")

    def _room(self, copy: SharedCopy) -> None:
        """Raise _NoRoom where the disk would be left with less than it should keep."""
        base = self._base
        usage, wanted = shutil.disk_usage(base), copy.bytes_missing()
        left = usage.free - int(min(_LEFT_FREE * usage.total, _LEFT_FREE_MOST))
        kind = mounts.of(str(base.resolve()), mounts.read())
        where = str(base)
        if kind is not None and kind.kind in _IN_MEMORY:
            # What is written there is the job's memory.
            where = f"{base}, which is memory ({kind.kind}),"
            memory = cgroup.memory_left()
            left = left if memory is None else min(left, memory // 2)
        if wanted > left:
            raise _NoRoom(f"it has {size(wanted)}, and {where} has room for {size(max(0, left))}")
