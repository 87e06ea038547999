"""Reads what an offline run of Weights & Biases holds: wandb has no reader in Python by now.

The file is in the format of LevelDB's logs, behind a header of seven bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 1 << 15
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def history(directory: Path) -> list[dict[str, Any]]:
    """The rows of all offline runs below a directory, in the order in which they were begun."""
    rows = []
    for path in sorted(directory.glob("offline-run-*/run-*.wandb")):
        for record in _records(path):
            if record.HasField("history"):
                items = record.history.item
                row = {one.key or ".".join(one.nested_key): _value(one) for one in items}
                rows.append({**row, "_step": record.history.step.num})
    return rows


def configuration(directory: Path) -> tuple[Any, dict[str, Any]]:
    """The first run's record, and its configuration."""
    [path, *_] = sorted(directory.glob("offline-run-*/run-*.wandb"))
    [run] = [record.run for record in _records(path) if record.HasField("run")]
    return run, {one.key: json.loads(one.value_json) for one in run.config.update}


def _value(item: Any) -> Any:
    return json.loads(item.value_json)


def _records(path: Path) -> Iterator[Any]:
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
        if len(part) < length or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        assert crc == zlib.crc32(bytes([kind]) + part), f"{place}: damaged"
        held = part if kind in (_WHOLE, _FIRST) else held + part
        if kind in (_WHOLE, _LAST):
            yield held
        place += _HEADER + length
