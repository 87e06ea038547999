"""Reader of offline W&B run files, for which wandb has no Python API.

Without it, the rows that a killed process had sent and wandb had not written yet would be lost. The
format is that of LevelDB's log files, after a header of seven bytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hpcrun.host import process_directories

_HEADER, _BLOCK = 7, 1 << 15
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def files(directory: Path) -> list[Path]:
    """Return the files of the offline directories, oldest first."""
    return sorted(directory.glob("offline-run-*/run-*.wandb"))


def is_written(paths: Collection[Path]) -> bool:
    """Check whether a process of this user on this host has one of the files open.

    wandb writes by a process of its own, which may outlive the one that was killed.
    """
    wanted = {os.path.realpath(path) for path in paths}
    for process in process_directories():
        # Another user's, or gone by now.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in wanted:
                        return True
    return False


def read(path: Path) -> Iterator[Any]:
    """Yield the records of a file (wandb's own ``Record``), up to where its writer was killed."""
    from wandb.proto import wandb_internal_pb2

    data, place, held = path.read_bytes(), _HEADER, b""
    while place + _HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + _HEADER : place + _HEADER + length]
        is_whole = len(part) == length and crc == zlib.crc32(bytes([kind]) + part)
        if not is_whole or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        held = part if kind in (_WHOLE, _FIRST) else held + part
        if kind in (_WHOLE, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            yield record
        place += _HEADER + length
