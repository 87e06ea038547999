"""Bytes of a log to lines: torn ends, progress bars, broken encodings and endless lines."""

from __future__ import annotations

import os
from typing import BinaryIO

MAX_LINE = 1 << 20
CHUNK = 1 << 18


class LineSplitter:
    """Cuts a stream of bytes into lines, in memory bounded by ``max_line``.

    Of a line with carriage returns the part after the last one counts, as on a terminal. A line
    longer than ``max_line`` bytes comes in pieces. Invalid UTF-8 becomes U+FFFD.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max = max_line
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        lines = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            lines += self._cut(self._rest + part)
            self._rest = b""
        self._rest += rest
        if b"\r" in self._rest:
            self._rest = _overwritten(self._rest, keep_last=True)
        while len(self._rest) > self._max:
            cut = _character_boundary(self._rest, self._max)
            lines.append(_text(self._rest[:cut]))
            self._rest = self._rest[cut:]
        return lines

    def flush(self) -> list[str]:
        """What is left of a line without an end."""
        rest, self._rest = self._rest, b""
        return self._cut(rest) if rest else []

    def _cut(self, line: bytes) -> list[str]:
        if b"\r" in line:
            line = _overwritten(line, keep_last=False)
        pieces = []
        while len(line) > self._max:
            cut = _character_boundary(line, self._max)
            pieces.append(_text(line[:cut]))
            line = line[cut:]
        return [*pieces, _text(line)]


def _overwritten(line: bytes, *, keep_last: bool) -> bytes:
    """The part that a terminal would still show; ``keep_last`` leaves a last ``\\r`` standing."""
    body = line.rstrip(b"\r")
    shown = body.rpartition(b"\r")[2]
    return shown + b"\r" if keep_last and len(body) < len(line) else shown


def _character_boundary(data: bytes, limit: int) -> int:
    cut = limit
    while cut > limit - 4 and cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut if cut > limit - 4 and cut > 0 else limit


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def start_of_tail(stream: BinaryIO, count: int) -> int:
    """The offset at which the last ``count`` lines begin; a torn last line counts as one."""
    position = stream.seek(0, os.SEEK_END)
    if count <= 0:
        return position
    wanted = count
    last = True
    while position > 0:
        size = min(CHUNK, position)
        position -= size
        stream.seek(position)
        block = stream.read(size)
        if last and block.endswith(b"\n"):
            wanted += 1
        last = False
        found = block.count(b"\n")
        if found < wanted:
            wanted -= found
            continue
        cut = len(block)
        for _ in range(wanted):
            cut = block.rindex(b"\n", 0, cut)
        return position + cut + 1
    return 0
