"""Files on shared storage: whole lines appended, whole files replaced."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun.text import Say


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


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines; nothing if there is no file.

    Lines that are not a JSON object (torn by a crash) are skipped.
    """
    try:
        data = read_tail(path)
    except FileNotFoundError:
        return
    yield from objects(data.split(b"\n"))


def read_on(path: Path, offset: int, most: int = 1 << 20) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of the whole lines after ``offset``, and the offset after them.

    One call reads ``most`` bytes; a longer line is not ours and is skipped. Raises OSError if the
    file exists and cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            data = stream.read(most)
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most:
        end = most
    return list(objects(data[:end].split(b"\n"))), offset + end


def read_tail(path: Path, size: int | None = None) -> bytes:
    """Return the last ``size`` bytes of a file, or all of a shorter one; None for all of it.

    Raises OSError if it cannot be read.
    """
    # For readers of thousands of small files, Python's open() is too slow.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        start = 0 if size is None else max(0, length - size)
        blocks = []
        while block := os.pread(descriptor, max(length - start, 1 << 12), start):
            blocks.append(block)
            start += len(block)
            if start >= length:
                break
        return b"".join(blocks)
    finally:
        os.close(descriptor)


def read_back(path: Path, size: int = 1 << 14) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file's last ``size`` bytes, last first; none if unreadable."""
    try:
        lines = read_tail(path, size + 1).split(b"\n")
    except OSError:
        return
    yield from objects(reversed(lines))


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among lines; others (torn by a crash) are skipped."""
    for line in lines:
        if not line:
            continue
        try:
            text = line.decode().strip()
            record, end = _decode(text)
        except ValueError:
            continue
        if end == len(text) and isinstance(record, dict):
            yield record


_decode = json.JSONDecoder().raw_decode


def last_line(path: Path) -> dict[str, Any] | None:
    """Return the last whole JSON object of a file of lines; None without one."""
    return next(read_back(path), None)


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


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises FileNotFoundError if there is no such file; ValueError if it is not JSON.
    """
    return json.loads(path.read_bytes())
