"""SHA-256 of the bytes that pass through a stream."""

from __future__ import annotations

import hashlib
from typing import Any


class HashingStream:
    """A binary stream that hashes and counts what is read from it or written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.bytes = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._update(data)
        return data

    def write(self, data: Any) -> int:
        self._update(data)
        written: int = self._stream.write(data)
        return written

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _update(self, data: Any) -> None:
        self._hash.update(data)
        self.bytes += len(data)
