"""Whole lines out of bytes: torn ends, progress bars, invalid encodings."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from hpcrun.policy.log_excerpt import is_bar, shown

MAX_LINE = 1 << 20
# So far back the beginning of a line is searched: a log may be one hole of many gigabytes.
MOST_SEARCHED = 1 << 26
CHUNK = 1 << 18
# So far back the lines between progress bars are searched.
_MOST_FOLDED = 1 << 24


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
            block = self._cleaned(self._cut(bytes(self._rest) + data[:end]))
            self._rest.clear()
        self._rest += data[end:]
        if not self._raw and b"\r" in self._rest:
            self._rest[:] = _overwritten(bytes(self._rest), keep_last=True)
        if len(self._rest) > self._max:
            *pieces, self._rest[:] = _pieces(bytes(self._rest), self._max)
            block += self._cleaned(b"".join(piece + b"\n" for piece in pieces))
        return block

    def flush(self) -> bytes:
        """Return the torn last line, with an end unless raw."""
        rest, self._rest = bytes(self._rest), bytearray()
        if self._raw:
            return rest
        return self._cleaned(self._cut(rest + b"\n")) if rest else b""

    def _cut(self, block: bytes) -> bytes:
        if len(block) <= self._max:
            return block
        lines = block[:-1].split(b"\n")
        return b"".join(p + b"\n" for line in lines for p in _pieces(line, self._max))

    def _cleaned(self, block: bytes) -> bytes:
        if self._raw:
            return block
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
            if b"\r" in block:
                shown = [_overwritten(line, keep_last=False) for line in block.split(b"\n")]
                block = b"\n".join(shown)
        if not block.isascii():
            block = block.decode("utf-8", errors="replace").encode()
        return block


def _overwritten(line: bytes, *, keep_last: bool) -> bytes:
    """Return what a terminal would still show; ``keep_last`` keeps a final ``\\r``."""
    found = shown(line)
    return found + b"\r" if keep_last and line.endswith(b"\r") else found


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


def start_of_line(stream: BinaryIO, offset: int) -> int:
    """Return where the line with the byte at ``offset`` begins, or the end of a shorter file."""
    first = position = min(offset, stream.seek(0, os.SEEK_END))
    while position > 0 and first - position < MOST_SEARCHED:
        size = min(CHUNK, position)
        stream.seek(position - size)
        found = stream.read(size).rfind(b"\n")
        if found >= 0:
            return position - size + found + 1
        position -= size
    return position


def start_of_tail(stream: BinaryIO, count: int) -> int:
    """Return the offset of the last ``count`` lines; a torn last line counts as one."""
    position = stream.seek(0, os.SEEK_END)
    if count <= 0:
        return position
    wanted = count
    last = True
    newest = position
    while position > 0 and newest - position < MOST_SEARCHED:
        size = min(CHUNK, position)
        position -= size
        stream.seek(position)
        block = stream.read(size)
        if last and block.endswith(b"\n"):
            wanted += 1
        last = False
        found = block.count(b"\n")
        newest = position if found else newest
        if found < wanted:
            wanted -= found
            continue
        cut = len(block)
        for _ in range(wanted):
            cut = block.rindex(b"\n", 0, cut)
        return position + cut + 1
    return position


def start_of_folded_tail(stream: BinaryIO, count: int) -> int:
    """Return the same where the updates of a progress bar that follow each other are one line."""
    end = stream.seek(0, os.SEEK_END)
    wanted = count
    while True:
        start = start_of_tail(stream, wanted)
        if count <= 0 or end - start > _MOST_FOLDED:
            return start
        stream.seek(start)
        begins, offset, in_bar = [], start, False
        for line in stream.read(end - start).removesuffix(b"\n").split(b"\n"):
            before, in_bar = in_bar, is_bar(shown(line))
            if not (before and in_bar):
                begins.append(offset)
            offset += len(line) + 1
        # The first one may be the end of a longer run of updates.
        if start == 0 or len(begins) > count or (len(begins) == wanted == count):
            return begins[-count] if len(begins) >= count else start
        wanted *= 8
