"""The files of a checkpoint: every byte passes once, to the file and to its checksum.

torch's own CRC-32 is left out, for the manifest has a better checksum.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hpcrun.run.checkpoint.checksums import Checksum
from hpcrun.state.manifest import File

_BLOCK = 1 << 23
_SYNC_FILE_RANGE_WRITE = 2


class Stream:
    """A new file, as ``torch.save`` wants it.

    Attributes
    ----------
    error
        Why it could not be written: torch raises an error of its own in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self._size = 0
        self._checksum = Checksum()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, data: Any) -> int:
        """Append some bytes."""
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left[:_BLOCK]) :]
                if len(data) >= _BLOCK:
                    _begin_to_write_out(self._descriptor)
        except OSError as error:
            self.error = error
            raise
        self._checksum.update(data)
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def finish(self, *, durable: bool = True) -> File:
        """Make it durable, unless that is not wanted; what it is."""
        if durable:
            os.fsync(self._descriptor)
        return self._checksum.of(self._size)

    def close(self) -> None:
        os.close(self._descriptor)


class Memory:
    """A place in memory that takes one file after another, and keeps its pages for the next."""

    def __init__(self) -> None:
        self._descriptor = _in_memory()
        self._size = 0

    def begin(self) -> None:
        """Take a new file in place of the last."""
        self._size = 0

    def write(self, data: Any) -> int:
        """Append some bytes."""
        left = memoryview(data)
        while left:
            count = os.pwrite(self._descriptor, left[:_BLOCK], self._size)
            self._size += count
            left = left[count:]
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def copy(self, path: Path) -> File:
        """Write it to a file and make that durable; what it is. Holds the interpreter for no time
        that could be felt."""
        stream = Stream(path)
        block = bytearray(min(_BLOCK, self._size))
        try:
            position = 0
            while position < self._size:
                view = memoryview(block)[: self._size - position]
                count = os.preadv(self._descriptor, [view], position)
                if count == 0:
                    raise OSError(errno.EIO, "the copy in memory is cut short")
                stream.write(view[:count])
                position += count
            return stream.finish()
        finally:
            stream.close()

    def close(self) -> None:
        os.close(self._descriptor)


def _begin_to_write_out(descriptor: int) -> None:
    """Have the kernel start on what a file has in memory, so that little is left for fsync."""
    if (begin := _sync_file_range()) is not None:
        begin(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Any:
    """The C library's, which Python does not offer; None where it has none."""
    return getattr(ctypes.CDLL(None), "sync_file_range", None)


def _in_memory() -> int:
    """A file without a name. Pythons that were built for an old C library know no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hpcrun-snapshot")
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())


def save(state: Any, path: Path, *, durable: bool = True) -> File:
    """``torch.save`` to a file, which is durable then unless that is not wanted.

    Raises
    ------
    OSError
        It cannot be written.
    """
    stream = Stream(path)
    try:
        save_into(stream, state)
        return stream.finish(durable=durable)
    except Exception:
        if stream.error is not None:
            raise stream.error from None
        raise
    finally:
        stream.close()


def save_into(target: Stream | Memory, state: Any) -> None:
    """``torch.save`` into what takes bytes in their order."""
    import torch

    with _without_crc():
        torch.save(state, target)


@contextmanager
def _without_crc() -> Iterator[None]:
    from torch import serialization

    before = serialization.get_crc32_options()
    serialization.set_crc32_options(False)
    try:
        yield
    finally:
        serialization.set_crc32_options(before)
