"""Reads what offline runs of Weights & Biases hold: wandb itself has no reader in Python by now.

A file is in the format of LevelDB's logs, behind a header of seven bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 1 << 15
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def arrived(directory: Path, state: dict[str, Any]) -> int:
    """The newest step that is in the files of a run's offline directories.

    Parameters
    ----------
    state
        As the last process kept it: ``directory``, the name of its own, the step ``before`` that,
        and the step that it had ``sent``. Where its own is gone by now, it has been synchronised
        and removed.
    """
    own, there = str(state.get("directory", "")), files(directory)
    is_gone = bool(own) and not any(path.parent.name == own for path in there)
    found = int(state.get("sent" if is_gone else "before", 0))
    for path in there:
        if path.parent.name >= own:
            steps = (one.history.step.num for one in read(path) if one.HasField("history"))
            found = max(found, *steps, 0)
    return found


def files(directory: Path) -> list[Path]:
    """The files of the offline directories, in the order in which these were begun."""
    return sorted(directory.glob("offline-run-*/run-*.wandb"))


def read(path: Path) -> Iterator[Any]:
    """The records of a file (wandb's own ``Record``), up to where its writer was killed."""
    from wandb.proto import wandb_internal_pb2

    for data in _whole(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def _whole(data: bytes) -> Iterator[bytes]:
    place, held = _HEADER, b""
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
            yield held
        place += _HEADER + length
