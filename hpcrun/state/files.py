"""Files on shared storage: whole lines appended, whole files replaced, all of them read in bounds.

A file may be another user's. Readers open regular files alone, never wait, and bound what they
take in: the bytes of a file, the levels, the digits and the number of the values of JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
import uuid
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun.text import Say, size

# The most bytes of a file of lines, of one of its lines, and of a JSON file.
MOST_LINES = 1 << 28
MOST_LINE = 1 << 20
MOST_JSON = 1 << 26


class ShortWrite(OSError):
    """The disk filled in the middle of an `append`; ``whole`` lines are in the file."""

    def __init__(self, message: str, whole: int) -> None:
        super().__init__(message)
        self.whole = whole


def append(path: Path, *records: dict[str, Any]) -> None:
    """Append JSON lines with a single write, so that lines never interleave on one host.

    A writer that died in the middle of a line leaves a torn tail: a newline is put after it, so
    that readers lose that one line alone. Raises ShortWrite if only some of it could be written;
    OSError if nothing could be written.
    """
    line = b"".join(
        json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"
        for record in records
    )
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        written = os.write(descriptor, line)
        if written != len(line):
            raise ShortWrite(
                f"{path}: only {written} of {len(line)} bytes could be appended",
                line[:written].lstrip(b"\n").count(b"\n"),
            )
    finally:
        os.close(descriptor)


def patiently(
    write: Callable[[], None],
    say: Say,
    what: str,
    *,
    pauses: Sequence[float] = (),
) -> bool:
    """Write with retries after ``pauses`` (seconds); a full disk is reported, never raised.

    ``what`` names the file in the message. Returns True if it was written.
    """
    for pause in (*pauses, None):
        try:
            write()
            return True
        except OSError as error:
            say(f"{what} cannot be written: {error}")
            if pause is not None:
                time.sleep(pause)
    return False


class Appender:
    """Writer of one file of JSON lines; lines that cannot be written wait for the next call.

    ``say`` receives one message when the file cannot be written, and one when it can again.
    ``error`` is the reason why lines wait; None when no line waits.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._say = path, say
        self._waiting: list[dict[str, Any]] = []
        self.error: OSError | None = None

    def write(self, *records: dict[str, Any]) -> None:
        """Append records, after those that wait."""
        self._waiting += records
        if not self._waiting:
            return
        try:
            append(self._path, *self._waiting)
        except OSError as error:
            del self._waiting[: getattr(error, "whole", 0)]
            if self.error is None:
                self._say(f"{self._path.name} cannot be written, its lines wait: {error}")
            self.error = error
            return
        self._waiting.clear()
        if self.error is not None:
            self._say(f"{self._path.name} is written again")
        self.error = None


class Refused(OSError):
    """A path that is not read: no regular file, or larger than what it should hold ever is."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(errno.EINVAL, reason, str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: Path | str) -> tuple[int, int]:
    """Open a regular file to read it; return its descriptor and its size.

    Every reader of files opens here: nothing that another user puts in a file's place (a FIFO, a
    socket, a device, a lease) blocks it. Raises Refused if it is not a regular file; OSError if it
    cannot be opened.
    """
    try:
        descriptor = os.open(path, _READ)
    except ValueError as error:  # a NUL byte
        raise Refused(path, str(error)) from None
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise Refused(path, "a socket or a device, not a regular file") from None
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise Refused(path, f"{kind}, not a regular file")
    return descriptor, found.st_size


_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_stream(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file as a stream of bytes; raise as `open_regular` does."""
    return os.fdopen(open_regular(path)[0], "rb", buffering)


def read_bytes(path: Path, most: int = MOST_JSON) -> bytes:
    """Read a regular file of at most ``most`` bytes; raise as `open_regular`, and if it is larger.

    A larger file is not read at all.
    """
    descriptor, size = open_regular(path)
    try:
        _check_size(path, size, most)
        return _read(descriptor, 0, size)
    finally:
        os.close(descriptor)


def read_tail(path: Path, size: int) -> bytes:
    """Return the last ``size`` bytes of a file, or all of a shorter one.

    Raises OSError if it cannot be read.
    """
    # For readers of thousands of small files, Python's open() is too slow.
    descriptor, length = open_regular(path)
    try:
        return _read(descriptor, max(0, length - size), length)
    finally:
        os.close(descriptor)


def _read(descriptor: int, start: int, end: int) -> bytes:
    blocks = []
    while block := os.pread(descriptor, max(end - start, 1 << 12), start):
        blocks.append(block)
        start += len(block)
        if start >= end:
            break
    return b"".join(blocks)


def _check_size(path: Path, found: int, most: int) -> None:
    if found > most:
        raise Refused(path, f"{size(found)}, and such a file has at most {size(most)}")


def read_lines(path: Path, most: int = MOST_LINES) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines; nothing if there is no file.

    Lines that are not a JSON object (torn by a crash) are skipped. Raises OSError if the file
    cannot be read; Refused if it has more than ``most`` bytes.
    """
    return (record for _, record in numbered_lines(path, most) if record is not None)


def numbered_lines(
    path: Path, most: int = MOST_LINES
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number and the JSON object of each line that is not empty; None for other lines.

    Raises as `read_lines` does.
    """
    try:
        descriptor, length = open_regular(path)
    except FileNotFoundError:
        return
    try:
        _check_size(path, length, most)
        start, number, held = 0, 0, b""
        while block := os.pread(descriptor, min(max(length - start, 1 << 12), MOST_LINE), start):
            lines = (held + (block if start else block.removeprefix(BOM_UTF8))).split(b"\n")
            start += len(block)
            # What is longer than a line ever is becomes one that no JSON begins with.
            held = b"" if start >= length else lines.pop()
            held = held if len(held) <= MOST_LINE else b"\0"
            for number, line in enumerate(lines, number + 1):  # noqa: B020
                if line:
                    yield number, _object(line)
            if start >= length:
                break
    finally:
        os.close(descriptor)


def read_on(path: Path, offset: int, most: int = MOST_LINE) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of the whole lines after ``offset``, and the offset after them.

    One call reads ``most`` bytes; a longer line is not ours and is skipped. Raises OSError if the
    file exists and cannot be read.
    """
    try:
        descriptor, _ = open_regular(path)
    except FileNotFoundError:
        return [], offset
    try:
        data = os.pread(descriptor, most, offset)
    finally:
        os.close(descriptor)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most:
        end = most
    return list(objects(data[:end].split(b"\n"))), offset + end


def read_back(path: Path, size: int = 1 << 14) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file's last ``size`` bytes, last first; none if unreadable."""
    try:
        lines = read_tail(path, size + 1).split(b"\n")
    except OSError:
        return
    yield from objects(reversed(lines))


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among lines; others (torn by a crash) are skipped."""
    return (record for line in lines if line and (record := _object(line)) is not None)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        if len(line) > _HARMLESS:
            _check(line)
        text = line.decode().strip()
        record, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    return record if end == len(text) and isinstance(record, dict) else None


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole JSON object of a file of lines; None without one."""
    return next(read_back(path), None)


def decode(data: bytes) -> Any:
    """Decode JSON of bounded depth, numbers and number of values.

    Raises ValueError if it is anything else.
    """
    _check(data)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check(data: bytes) -> None:
    """Raise ValueError if JSON is nested too deeply, or has too long a number or too many values.

    Works at the speed of memory: strings are told from the rest only if it seems to be so.
    """
    if _has_long_number(data) or _is_deep(data):
        # Without the strings, first their escapes: no backtracking whatever they hold.
        data = _STRING.sub(b"", data.replace(b"\\\\", b"").replace(b'\\"', b""))
        if _has_long_number(data):
            raise ValueError(f"a number of more than {_MOST_DIGITS} digits")
        if _is_deep(data):
            raise ValueError(f"nested more than {MOST_LEVELS} levels deep")
    if len(data) > _MOST_VALUES and len(data.translate(None, _NOT_COUNTED)) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")


def _has_long_number(data: bytes) -> bool:
    # Three places in a row are in so many digits.
    return bool(_DIGITS(data[:: _MOST_DIGITS // 3])) and _LONG_NUMBER in data.translate(_AS_ZEROS)


def _is_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS:
        return False
    brackets = data.translate(None, _NOT_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


# Deeper than anything that is written, and far from the depth that Python's recursion bears.
MOST_LEVELS = 100
_MOST_DIGITS = 300
_MOST_VALUES = 3_000_000
_HARMLESS = 2 * MOST_LEVELS
_LONG_NUMBER = b"0" * (_MOST_DIGITS + 1)
_STRING = re.compile(rb'"[^"]*"?')
_DIGITS = re.compile(rb"[0-9]{3}").search
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_NOT_COUNTED = bytes(byte for byte in range(256) if byte not in b"[{,")
_decode = json.JSONDecoder().raw_decode


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a temporary file, fsync it and rename it to ``path``; on an error remove it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporaries(directory: Path) -> list[Path]:
    """Return the temporaries that killed processes have left in a directory."""
    return sorted(directory.glob(".*.tmp"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    with replacing(path) as stream:
        stream.write(data)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole, indented, keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """Read a JSON file.

    Raises FileNotFoundError if there is no such file; Refused if it is not a regular file of at
    most ``most`` bytes; ValueError if it is not JSON, or JSON that nobody here has written.
    """
    return decode(read_bytes(path, most))
