"""Files of a checkpoint, written and checked with their checksums."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun.state import files
from hpcrun.state.manifest import Fault, File

_BLOCK = 1 << 23
_SYNC_FILE_RANGE_WRITE = 2
_PINNED = "use_pinned_memory_for_d2h"


class Checksum:
    """A running checksum: XXH3 of 128 bits, at the speed of memory, or SHA-256.

    It is of the kind that ``like`` has (`ImportError` if that needs the package xxhash, which is
    not there); None uses the faster one that is installed.
    """

    def __init__(self, like: File | None = None) -> None:
        self._kind = "sha256"
        self._digest: Any = hashlib.sha256()
        if like is None or like.xxh128:
            try:
                import xxhash

                self._kind, self._digest = "xxh128", xxhash.xxh3_128()
            except ImportError:
                if like is not None:
                    raise

    def update(self, data: Any) -> None:
        self._digest.update(data)

    def of(self, size: int) -> File:
        """Return the manifest's entry of a file of ``size`` bytes."""
        return File(size, **{self._kind: self._digest.hexdigest()})


def describe(path: Path, *, sync: bool = False, like: File | None = None) -> File:
    """Return size and checksum of an existing file; ``sync`` makes it durable first."""
    with files.open_stream(path) as stream:
        if sync:
            os.fsync(stream.fileno())
        return _describe(stream, like)


def _describe(stream: BinaryIO, like: File | None) -> File:
    checksum, size = Checksum(like), 0
    while block := stream.read(_BLOCK):
        checksum.update(block)
        size += len(block)
    return checksum.of(size)


def damage(directory: Path, name: str, expected: File) -> Fault | None:
    """Compare a file of a checkpoint with its manifest; None if they agree."""
    try:
        # Opened first: a size that is known without that may be older than the file.
        with files.open_stream(directory / name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != expected.bytes:
                return Fault(f"{name} has {size} bytes, its manifest says {expected.bytes}")
            if _describe(stream, expected) != expected:
                return Fault(f"{name} does not have the checksum that its manifest says")
    except (FileNotFoundError, NotADirectoryError):
        return Fault(f"{name} is missing")
    except OSError as error:
        return Fault(f"{name} cannot be read: {error.strerror}", lasting=False)
    except ImportError:
        return Fault(f"{name} cannot be checked without the package xxhash", lasting=False)
    return None


class ChecksummedFile:
    """A new file that ``torch.save`` can write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept from a failed write, because torch raises an error of its own in its place.
        self.error: OSError | None = None
        self._size = 0
        self._checksum = Checksum()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, data: Any) -> int:
        """Append bytes."""
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left[:_BLOCK]) :]
                if len(data) >= _BLOCK:
                    _start_writeback(self._descriptor)
        except OSError as error:
            self.error = error
            raise
        self._checksum.update(data)
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def finish(self, *, durable: bool = True) -> File:
        """Make it durable, unless not wanted, and return its size and checksum."""
        if durable:
            os.fsync(self._descriptor)
        return self._checksum.of(self._size)

    def close(self) -> None:
        os.close(self._descriptor)


class MemoryFile:
    """A file in memory for ``torch.save``, reused so that its pages are allocated once."""

    def __init__(self) -> None:
        self._descriptor = _memory_descriptor()
        self._size = 0

    def begin(self) -> None:
        """Start over with an empty file."""
        self._size = 0

    def write(self, data: Any) -> int:
        """Append bytes."""
        left = memoryview(data)
        while left:
            count = os.pwrite(self._descriptor, left[:_BLOCK], self._size)
            self._size += count
            left = left[count:]
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def copy(self, path: Path) -> File:
        """Copy it to a durable file and return size and checksum; releases the GIL meanwhile."""
        target = ChecksummedFile(path)
        block = bytearray(min(_BLOCK, self._size))
        try:
            position = 0
            while position < self._size:
                view = memoryview(block)[: self._size - position]
                count = os.preadv(self._descriptor, [view], position)
                if count == 0:
                    raise OSError(errno.EIO, "the copy in memory is cut short")
                target.write(view[:count])
                position += count
            return target.finish()
        finally:
            target.close()


def _start_writeback(descriptor: int) -> None:
    """Have the kernel start writing a file's dirty pages, so that little is left for fsync."""
    if (begin := _sync_file_range()) is not None:
        begin(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Any:
    """Return the C library's function, which Python does not offer; None if it has none."""
    return getattr(ctypes.CDLL(None), "sync_file_range", None)


def _memory_descriptor() -> int:
    """Open a file without a name. Pythons built for an old C library have no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hpcrun-snapshot")
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())


def save(state: Any, path: Path, *, durable: bool = True) -> File:
    """``torch.save`` to a file, durable unless not wanted; return its size and checksum."""
    target = ChecksummedFile(path)
    try:
        save_into(target, state)
        return target.finish(durable=durable)
    except Exception:
        if target.error is not None:
            raise target.error from None
        raise
    finally:
        target.close()


def save_into(target: ChecksummedFile | MemoryFile, state: Any) -> None:
    """``torch.save`` to an open target, without torch's CRC-32: the manifest has a better one.

    What is on a GPU comes through pinned memory, which torch keeps for the next save. A state with
    ``write_to`` writes itself.
    """
    import torch
    from torch import serialization
    from torch.utils.serialization import config

    pinned = getattr(config.save, _PINNED, None)  # None: this torch does not know it
    before = serialization.get_crc32_options()
    serialization.set_crc32_options(False)
    if pinned is not None:
        setattr(config.save, _PINNED, True)
    try:
        if hasattr(state, "write_to"):
            state.write_to(target)
        else:
            torch.save(state, target)
    finally:
        serialization.set_crc32_options(before)
        if pinned is not None:
            setattr(config.save, _PINNED, pinned)
