"""Standard output and error of a rank, which no full disk can end: a log goes without a line."""

from __future__ import annotations

import errno
import io
import sys
from typing import TextIO

# The file system takes nothing now, or no more at all.
_TAKES_NOTHING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}


class _Raw(io.FileIO):
    """A descriptor that seems to take what it cannot."""

    def write(self, data: object, /) -> int:
        try:
            return int(super().write(data) or 0)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in _TAKES_NOTHING:
                raise
            return memoryview(data).nbytes  # type: ignore[arg-type]


def install() -> None:
    """Have print, logging and tracebacks of this process lose lines rather than raise."""
    sys.stdout = _stream(1, sys.stdout)
    sys.stderr = _stream(2, sys.stderr)


def _stream(descriptor: int, before: TextIO) -> TextIO:
    before.flush()
    return io.TextIOWrapper(
        _Raw(descriptor, "w", closefd=False),
        encoding=before.encoding,
        # A character that the locale does not know is no reason to end a run either.
        errors="backslashreplace",
        write_through=True,
    )
