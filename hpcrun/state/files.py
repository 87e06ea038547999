"""Files on shared storage: whole lines appended, whole files replaced, all of them read in bounds.

A file may be another user's. Readers open regular files alone, never wait, and bound what they
take in: the bytes of a file, and what JSON makes of them (`hpcrun.bounded_json`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from hpcrun import bounded_json, shared_look
from hpcrun.bounded_json import parse_line
from hpcrun.text import Say, size

P = ParamSpec("P")
T = TypeVar("T")

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
        above = os.path.dirname(path) or "."  # noqa: PTH120 - thousands of them
        descriptor = shared_look.answer_of(functools.partial(os.open, path, _READ), above)
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


def _again_if_stale(read: Callable[P, T]) -> Callable[P, T]:
    """Read once more where another host has replaced the file in between."""

    @functools.wraps(read)
    def reread(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return read(*arguments, **options)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        return read(*arguments, **options)

    return reread


_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_stream(path: Path | str, buffering: int = -1) -> BinaryIO:
    """Open a regular file as a stream of bytes; raise as `open_regular` does."""
    return os.fdopen(open_regular(path)[0], "rb", buffering)


@_again_if_stale
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


@_again_if_stale
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
    return (record for _, record in numbered_lines(path, most) if type(record) is dict)


@_again_if_stale
def numbered_lines(
    path: Path, most: int = MOST_LINES
) -> Iterable[tuple[int, dict[str, Any] | bytes]]:
    """Return the number and the JSON object of each line that is not empty; others as they are.

    Raises as `read_lines` does, perhaps only as the lines are taken.
    """
    try:
        descriptor, length = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    if length > MOST_LINE:
        return _blocks_of_lines(path, descriptor, length, most)
    try:
        data = _read(descriptor, 0, length)
    finally:
        os.close(descriptor)
    lines = data.removeprefix(BOM_UTF8).split(b"\n")
    return [(number, parse_line(line)) for number, line in enumerate(lines, 1) if line]


def _blocks_of_lines(
    path: Path, descriptor: int, length: int, most: int
) -> Iterator[tuple[int, dict[str, Any] | bytes]]:
    try:
        _check_size(path, length, most)
        start, number, held = 0, 0, b""
        while block := os.pread(descriptor, MOST_LINE, start):
            lines = (held + (block if start else block.removeprefix(BOM_UTF8))).split(b"\n")
            start += len(block)
            # What is longer than a line ever is becomes one that no JSON begins with.
            held = b"" if start >= length else lines.pop()
            held = held if len(held) <= MOST_LINE else b"\0"
            for number, line in enumerate(lines, number + 1):  # noqa: B020
                if line:
                    yield number, parse_line(line)
            if start >= length:
                break
    finally:
        os.close(descriptor)


@_again_if_stale
def read_on(path: Path, offset: int, most: int = MOST_LINE) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of the whole lines after ``offset``, and the offset after them.

    One call reads ``most`` bytes; a longer line is not ours and is skipped. Raises OSError if the
    file exists and cannot be read.
    """
    try:
        descriptor, _ = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
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
    return (record for line in lines if line and type(record := parse_line(line)) is dict)


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole JSON object of a file of lines; None without one."""
    return next(read_back(path), None)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a temporary file, fsync it and rename it to ``path``; on an error remove it."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        where = getattr(error, "filename", None)
        if isinstance(error, OSError) and error.errno and where in (None, str(temporary)):
            # A write or fsync that failed does not say where.
            error.filename = str(path)
        raise


def remove_if_empty(*paths: Path) -> None:
    """Remove files that hold nothing. Best effort.

    They are opened: what is known of a file without that may be older than another node's lines.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor, size = open_regular(path)
            os.close(descriptor)
            if not size:
                path.unlink()


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
    return bounded_json.parse(read_bytes(path, most))
