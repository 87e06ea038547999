"""Read archives of frozen code, which may be another user's: within bounds."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hpcrun.errors import UsageError
from hpcrun.state import files as state_files

if TYPE_CHECKING:
    from typing_extensions import Self

# What is frozen at most; more is hardly code.
MOST_FILES = 50_000
MOST_BYTES = 100_000_000
# The most bytes of one long name, and of all that an archive holds beside the files' contents.
_MOST_NAME = 1 << 20
_MOST_BESIDE = 2 * MOST_BYTES


def members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the files and links of an archive, with the files' contents.

    Raises UsageError if it cannot be read, or holds more than
    `hpcrun.submission.code.snapshot.freeze` accepts.
    """
    left = MOST_BYTES
    try:
        with (
            state_files.open_stream(archive) as stream,
            gzip.GzipFile(fileobj=stream) as unpacked,
            tarfile.open(None, "r|", cast(Any, _Bounded(unpacked)), tarinfo=_Member) as tar,
        ):
            for number, member in enumerate(tar):
                left -= member.size
                if left < 0 or number >= 2 * MOST_FILES or member.issparse():
                    raise _too_much()
                inner = tar.extractfile(member) if member.isfile() else None
                if inner is not None or member.issym():
                    yield member, inner.read() if inner else b""
    except Exception as error:
        # Hostile bytes make the readers of gzip and tar raise almost anything.
        raise UsageError(f"the frozen code {archive} cannot be read: {error}") from None


class _Member(tarfile.TarInfo):
    """A header, which is not read on if it announces a huge name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in tarfile.REGULAR_TYPES and found.size > _MOST_NAME:
            raise _too_much()
        return found


class _Bounded:
    """The unpacked bytes of an archive, as many as it may have."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MOST_BYTES + _MOST_BESIDE

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _too_much()
        return data


def _too_much() -> ValueError:
    most = f"{MOST_BYTES / 1e6:.0f} MB, or {2 * MOST_FILES:,} files"
    return ValueError(f"it unpacks to more than {most}")
