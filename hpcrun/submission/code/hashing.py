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
        return self._update(self._stream.read(size))

    def write(self, data: Any) -> int:
        written: int = self._stream.write(self._update(data))
        return written

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _update(self, data: bytes) -> bytes:
        self._hash.update(data)
        self.bytes += len(data)
        return data
