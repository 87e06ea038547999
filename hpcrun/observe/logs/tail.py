"""One growing log file, read on through truncation and replacement.

::

    tail = Tail(source)
    while block := tail.read()[0]:
        sys.stdout.buffer.write(block)
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hpcrun.policy.log_excerpt import is_bar, visible_part
from hpcrun.state import files

MAX_LINE = 1 << 20
# So far back the beginning of a line is searched: a log may be one hole of many gigabytes.
MOST_SEARCHED = 1 << 26
CHUNK = 1 << 18
_KEPT = 32
FULL = CHUNK - _KEPT
# So far back the lines between progress bars are searched.
_MOST_FOLDED = 1 << 24


@dataclass(frozen=True, eq=False)
class Source:
    """One log file, which need not exist yet; compares by identity."""

    path: Path
    experiment: str
    run: int
    attempt: int | None
    """None for the batch step's log, which covers several."""
    stream: str
    """``worker``, ``agent``, ``batch``, or the name of another log, such as ``tracker-wandb``."""
    rank: int | None = None
    node: str | None = None
    """The rank of a worker, the node of an agent; None for other streams."""

    @cached_property
    def run_key(self) -> Path:
        """The run's directory; for the batch step's log, the experiment's."""
        return self.path.parent.parent.parent


class SizeMark(NamedTuple):
    """A file's size in bytes at a time, in seconds since the epoch."""

    time: float
    size: int


class LineBlock(NamedTuple):
    """Whole lines of one file, each with its newline, and by when they were written, if known."""

    source: Source
    data: bytes
    written: float | None = None

    def lines(self) -> list[bytes]:
        """Return the lines without their ends."""
        return self.data.removesuffix(b"\n").split(b"\n")


class Tail:
    """Reads one file as it grows; ``raw`` leaves the bytes unchanged (`LineSplitter`).

    Each read repeats the last bytes of the read before: if they have changed, the file was
    truncated and written anew, and is read from its beginning. So polling an open file that has
    not grown costs a single system call.

    The follower keeps in ``quiet_since`` when the file grew last, on the monotonic clock. ``marks``
    are the file's sizes over time, oldest first: a single read never crosses one. The lines read
    last were written by ``written``, in seconds since the epoch; it is None after the last mark.
    ``line_start`` is the offset behind the last line that was returned.
    """

    __slots__ = (
        *("source", "quiet_since", "marks", "written", "_path", "_descriptor", "_offset", "_kept"),
        *("_inode", "_modified", "_splitter", "_skips", "line_start"),
    )

    def __init__(self, source: Source, *, raw: bool = False) -> None:
        self.source = source
        self.quiet_since = 0.0
        self.marks: deque[SizeMark] = deque()
        self.written: float | None = None
        self._path = os.fspath(source.path)
        self._descriptor = -1
        self._offset = self.line_start = 0
        self._kept = b""
        self._inode = 0
        self._modified = 0
        self._splitter = LineSplitter(raw=raw)
        self._skips = not raw

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def begin_with(self, count: int, *, bars: bool = False) -> None:
        """Begin with the last ``count`` lines of the file as it is now.

        With ``bars``, the updates of a progress bar that follow each other count as one.
        """
        start = start_of_folded_tail if bars else start_of_tail
        self._begin(lambda stream: start(stream, count))

    def begin_at(self, offset: int) -> None:
        """Begin with the line that contains this byte; the latest of several beginnings counts."""
        self._begin(lambda stream: _behind_end(stream, min(offset, _size(stream)), 1))

    def begin_behind(self, offset: int) -> None:
        """Begin behind so many bytes: a `line_start` of before."""
        self._begin(lambda stream: min(offset, _size(stream)))

    def _begin(self, find: Callable[[BinaryIO], int]) -> None:
        try:
            with files.open_stream(self._path, 0) as stream:
                self._offset = max(self._offset, find(stream))
                kept = min(_KEPT, self._offset)
                self._kept = os.pread(stream.fileno(), kept, self._offset - kept)
                self._inode = os.fstat(stream.fileno()).st_ino
        except OSError:
            self._offset, self._kept = 0, b""
        self.line_start = self._offset

    def read(self, size: int = CHUNK) -> tuple[bytes, int]:
        """Return the whole lines written since the last read, and the number of bytes read.

        Reads at most ``size`` bytes; when `FULL` or more were read, there may be more. Opens the
        file if necessary; one that cannot be read counts as empty.
        """
        if self._descriptor < 0:
            before = self._inode
            if not self._open():
                return b"", 0
            if before not in (0, self._inode):
                return self._from_its_beginning()
        kept = self._kept
        if self.marks:
            size = self._up_to_mark(size)
        try:
            data = os.pread(self._descriptor, size, self._offset - len(kept))
        except OSError:
            self.close()
            return b"", 0
        if data == kept:
            return b"", 0
        if not data.startswith(kept):
            return self._from_its_beginning()
        fresh = data[len(kept) :] if kept else data
        if fresh[-1] == 0 and len(data) == CHUNK and self._skips and not fresh.strip(b"\0"):
            try:
                self._skip_hole(self._offset + len(fresh))
            except OSError:  # replaced by another host
                self.close()
                return b"", 0
            return b"", FULL
        if end := fresh.rfind(b"\n") + 1:
            self.line_start = self._offset + end
        self._offset += len(fresh)
        self._kept = data[-_KEPT:]
        return self._splitter.feed(fresh), FULL if len(data) == size else len(fresh)

    def _skip_hole(self, offset: int) -> None:
        """Go on behind the zeros up to ``offset`` and the hole that they may be a part of."""
        try:
            self._offset = os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError:  # nothing follows
            self._offset = max(offset, os.fstat(self._descriptor).st_size)
        self._kept = os.pread(self._descriptor, _KEPT, self._offset - _KEPT)

    def _from_its_beginning(self) -> tuple[bytes, int]:
        self._offset, self._kept = 0, b""
        return self._splitter.flush(), FULL

    def _up_to_mark(self, size: int) -> int:
        """Limit a read to the next mark, so that its time holds for all that is read."""
        marks = self.marks
        while marks and marks[0].size <= self._offset:
            marks.popleft()
        self.written = marks[0].time if marks else None
        return min(size, marks[0].size - self._offset + len(self._kept)) if marks else size

    def replaced(self, *, anew: bool = False) -> bool:
        """Check whether the path names another file than the open one.

        ``anew`` reopens it too: so the client of a network file system asks for its size.
        """
        try:
            if not anew:
                return os.stat(self._path).st_ino != self._inode
            descriptor, _ = files.open_regular(self._path)
        except OSError:
            return False
        replaced = os.fstat(descriptor).st_ino != self._inode
        if replaced:
            os.close(descriptor)
            try:
                descriptor = os.open(
                    f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC
                )
            except OSError:
                return True
        os.close(self._descriptor)
        self._descriptor = descriptor
        return replaced

    def restart(self) -> None:
        """Begin anew with the file that the path names now."""
        self.close()
        self._offset, self._kept, self._inode = 0, b"", 0

    def changed(self) -> bool:
        """Check whether a closed file has changed since it was read."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        return now != (self._inode, self._offset, self._modified)

    def age(self) -> float:
        """Return the seconds since the file's last write, as of when it was opened."""
        return max(0.0, time.time() - self._modified / 1e9)

    def finish(self) -> bytes:
        """Close the file; return the torn last line, with an end."""
        self.close()
        self.line_start = self._offset
        return self._splitter.flush()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
        try:
            self._descriptor, _ = files.open_regular(self._path)
            found = os.fstat(self._descriptor)
        except OSError:
            self.close()
            return False
        self._inode, self._modified = found.st_ino, found.st_mtime_ns
        return True


class LineSplitter:
    """Cuts a stream of bytes into blocks of whole lines, in memory bounded by ``max_line``.

    A line with carriage returns is reduced to the part after the last one, as a terminal shows it.
    A line longer than ``max_line`` bytes is cut into several. Invalid UTF-8 becomes U+FFFD.

    ``raw`` leaves the bytes unchanged; memory is then bounded by the longest line.
    """

    def __init__(self, max_line: int = MAX_LINE, *, raw: bool = False) -> None:
        self._max, self._raw = sys.maxsize if raw else max_line, raw
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes, each with its newline; perhaps none.

        A block is never longer than ``data`` and ``max_line`` together.
        """
        end = data.rfind(b"\n") + 1
        block = b""
        if end:
            block = self._clean(self._cut_lines(bytes(self._rest) + data[:end]))
            self._rest.clear()
        self._rest += data[end:]
        if not self._raw and b"\r" in self._rest:
            # What a last one overwrites is not known yet.
            rest = bytes(self._rest)
            self._rest[:] = visible_part(rest) + b"\r" * rest.endswith(b"\r")
        if len(self._rest) > self._max:
            *pieces, self._rest[:] = _pieces(bytes(self._rest), self._max)
            block += self._clean(b"".join(piece + b"\n" for piece in pieces))
        return block

    def flush(self) -> bytes:
        """Return the torn last line, with an end unless raw."""
        rest, self._rest = bytes(self._rest), bytearray()
        if self._raw:
            return rest
        return self._clean(self._cut_lines(rest + b"\n")) if rest else b""

    def _cut_lines(self, block: bytes) -> bytes:
        if len(block) <= self._max:
            return block
        lines = block[:-1].split(b"\n")
        return b"".join(p + b"\n" for line in lines for p in _pieces(line, self._max))

    def _clean(self, block: bytes) -> bytes:
        if self._raw:
            return block
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
            if b"\r" in block:
                block = b"\n".join(map(visible_part, block.split(b"\n")))
        if not block.isascii():
            block = block.decode("utf-8", errors="replace").encode()
        return block


def _pieces(line: bytes, limit: int) -> list[bytes]:
    pieces = []
    while len(line) > limit:
        cut = _character_boundary(line, limit)
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def _character_boundary(data: bytes, limit: int) -> int:
    cut = limit
    while cut > limit - 4 and cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if cut > limit - 4 and cut > 0 else limit


def _size(stream: BinaryIO) -> int:
    return stream.seek(0, os.SEEK_END)


def start_of_tail(stream: BinaryIO, count: int) -> int:
    """Return the offset of the last ``count`` lines; a torn last line counts as one."""
    end = _size(stream)
    if count <= 0 or not end:
        return end
    stream.seek(end - 1)
    return _behind_end(stream, end, count + (stream.read(1) == b"\n"))


def _behind_end(stream: BinaryIO, position: int, wanted: int) -> int:
    """Return the offset behind so many ends of lines, counted back from a position."""
    newest = position
    while position > 0 and newest - position < MOST_SEARCHED:
        size = min(CHUNK, position)
        position -= size
        stream.seek(position)
        block = stream.read(size)
        found = block.count(b"\n")
        if found >= wanted:
            cut = len(block)
            for _ in range(wanted):
                cut = block.rindex(b"\n", 0, cut)
            return position + cut + 1
        wanted -= found
        newest = position if found else newest
    return position


def start_of_folded_tail(stream: BinaryIO, count: int) -> int:
    """Return the same where the updates of a progress bar that follow each other are one line."""
    end = _size(stream)
    wanted = count
    while True:
        start = start_of_tail(stream, wanted)
        if count <= 0 or end - start > _MOST_FOLDED:
            return start
        stream.seek(start)
        begins, offset, in_bar = [], start, False
        for line in stream.read(end - start).removesuffix(b"\n").split(b"\n"):
            before, in_bar = in_bar, is_bar(visible_part(line))
            if not (before and in_bar):
                begins.append(offset)
            offset += len(line) + 1
        # The first one may be the end of a longer run of updates.
        if start == 0 or len(begins) > count or (len(begins) == wanted == count):
            return begins[-count] if len(begins) >= count else start
        wanted *= 8
