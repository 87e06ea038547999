"""What hpcrun says on compute nodes; a log on a full disk goes without it."""

from __future__ import annotations

import contextlib
import os
import time


def tell(message: str) -> None:
    """Print a line in a rank's log."""
    with contextlib.suppress(OSError):
        print(f"hpcrun: {message}", flush=True)


def say(message: str) -> None:
    """Write a line, with its time, in the log of the batch step or of an agent.

    Past the buffer of ``sys.stdout``: what cannot be written would be tried again at the process's
    end, and change its exit code.
    """
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} hpcrun: {message}\n"
    with contextlib.suppress(OSError):
        os.write(1, line.encode(errors="backslashreplace"))
