"""TensorBoard's event files, written by hand."""

from __future__ import annotations

import struct
from pathlib import Path


def event(step: int, time: float, **values: float) -> bytes:
    """One record with scalars, as torch's SummaryWriter writes them."""
    parts = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
        for tag, value in values.items()
    )
    return record(b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step) + _bytes(5, parts))


def tensor_event(step: int, time: float, tag: str, value: float) -> bytes:
    """One record with a scalar, as TensorFlow 2 writes it."""
    tensor = b"\x08\x01" + _bytes(2, b"") + _bytes(4, struct.pack("<f", value))
    summary = _bytes(1, _bytes(1, tag.encode()) + _bytes(8, tensor))
    return record(b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step) + _bytes(5, summary))


def record(data: bytes) -> bytes:
    """A record of any data, its checksums zeros."""
    return struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)


def write(path: Path, *records: bytes) -> Path:
    """Append records to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as stream:
        stream.write(b"".join(records))
    return path


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
