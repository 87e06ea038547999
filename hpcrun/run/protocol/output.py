"""Output of processes on compute nodes. Best effort: a full disk drops lines."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import time
from typing import TextIO

from hpcrun.text import entry

# The file system takes nothing now, or no more at all.
_DROPPED = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}


def tell(message: str) -> None:
    """Print an entry in a rank's log."""
    with contextlib.suppress(OSError):
        print(f"hpcrun: {entry(message)}", flush=True)


def say(message: str) -> None:
    """Write an entry, with its time, in the log of the batch step or of an agent.

    Bypasses the buffer of ``sys.stdout``, which would be flushed again at exit, and a failure there
    would change the exit code.
    """
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} hpcrun: {entry(message)}\n"
    with contextlib.suppress(OSError):
        os.write(1, line.encode(errors="backslashreplace"))


class _LossyFile(io.FileIO):
    """A descriptor that reports success for what a full disk dropped."""

    def write(self, data: object, /) -> int:
        try:
            return int(super().write(data) or 0)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in _DROPPED:
                raise
            return memoryview(data).nbytes  # type: ignore[arg-type]


def drop_lines_on_full_disk() -> None:
    """Have print, logging and tracebacks of this process lose lines rather than raise."""
    sys.stdout = _lossy(1, sys.stdout)
    sys.stderr = _lossy(2, sys.stderr)


def _lossy(descriptor: int, before: TextIO) -> TextIO:
    before.flush()
    return io.TextIOWrapper(
        _LossyFile(descriptor, "w", closefd=False),
        encoding=before.encoding,
        # A character outside the locale must not end a run either.
        errors="backslashreplace",
        write_through=True,
    )
