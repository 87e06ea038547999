"""Measures a directory: fsync, rename, writing; it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from hpcrun import mounts
from hpcrun.tools.doctor.machine_promises import StorageFacts

# Seconds for each part, so that slow storage does not take minutes.
_SYNC_SECONDS, _SYNCS = 2.0, 16
_WRITE_SECONDS, _WRITE_BYTES, _BLOCK = 3.0, 128 << 20, 4 << 20


def measure(root: Path) -> StorageFacts:
    """Measure the storage of a root, which need not exist; never raises OSError."""
    there = next((path for path in (root, *root.parents) if path.is_dir()), root)
    mount = mounts.of(os.path.realpath(there), mounts.read())
    kind, remote = (mount.kind, mount.is_remote) if mount else (None, False)
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryDirectory(prefix=".hpcrun-doctor-", dir=there) as name:
            directory = Path(name)
            renames, sync = _records(directory)
            write = _write(directory, min(_WRITE_BYTES, free // 4))
    except OSError as error:
        return StorageFacts(str(root), kind, remote, error=_told(there, error))
    return StorageFacts(str(root), kind, remote, sync, write, free, renames)


def _told(there: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"{there} cannot be written by you"
    return error.strerror or str(error)


def _records(directory: Path) -> tuple[bool, float]:
    """Return whether a rename replaces and mkdir refuses, and the seconds of a record."""
    took, right = [], True
    until = time.monotonic() + _SYNC_SECONDS
    new, place = directory / "new", directory / "record"
    for number in range(_SYNCS):
        began = time.perf_counter()
        with open(new, "wb") as stream:
            stream.write(b"%04d" % number * 1024)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, place)
        took.append(time.perf_counter() - began)
        right = right and place.read_bytes()[:4] == b"%04d" % number and not new.exists()
        if time.monotonic() > until:
            break
    claim = directory / "claim"
    claim.mkdir()
    with contextlib.suppress(FileExistsError):
        claim.mkdir()
        right = False
    return right, statistics.median(took)


def _write(directory: Path, most: int) -> float | None:
    """Return the bytes per second of one file, its fsync included."""
    block, written, began = os.urandom(_BLOCK), 0, time.perf_counter()
    with open(directory / "file", "wb") as stream:
        while written < most and time.perf_counter() - began < _WRITE_SECONDS:
            written += stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
    return written / (time.perf_counter() - began) if written else None
