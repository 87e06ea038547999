"""Hashing what passes through a stream."""

from __future__ import annotations

import hashlib
import io

from hpcrun.submission.code.hashing import HashingStream


def test_what_is_read_is_hashed_and_counted() -> None:
    stream = HashingStream(io.BytesIO(b"some bytes"))
    assert stream.read(4) + stream.read(100) == b"some bytes"
    assert stream.bytes == 10
    assert stream.hexdigest() == hashlib.sha256(b"some bytes").hexdigest()


def test_what_is_written_is_hashed_and_passed_on() -> None:
    target = io.BytesIO()
    stream = HashingStream(target)
    assert stream.write(b"some ") + stream.write(b"bytes") == 10
    assert target.getvalue() == b"some bytes"
    assert stream.bytes == 10
    assert stream.hexdigest() == hashlib.sha256(b"some bytes").hexdigest()
