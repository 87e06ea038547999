"""The owner of a lock on shared storage, ``HOST:PID:TICKS``, and whether it is gone.

On its own host its process tells. On another one its silence does, by the storage's clock: those of
two hosts need not agree.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from hpcrun import shared_look
from hpcrun.host import start_ticks
from hpcrun.text import whole_number


def myself() -> str:
    """Return this process as the owner of a lock."""
    return f"{os.uname().nodename}:{os.getpid()}:{start_ticks(os.getpid())}"


def parts(owner: str) -> tuple[str, str, str]:
    """Return an owner's host, process id and start; empty where it is none."""
    host, pid, ticks = [*owner.split(":"), "", ""][:3]
    return host, pid, ticks


def renewal(file: Path, every: float) -> Callable[[], None]:
    """Return a function that renews a lock, to be called often; it does so ``every`` seconds."""
    renewed = 0.0

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed > every:
            renewed = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(file)

    return renew


class OwnerWatch:
    """Waits for the owners of a lock, who renew it well within ``patience`` seconds.

    ``directory`` is one that this process may write into, on the lock's storage.
    """

    def __init__(self, directory: Path, patience: float) -> None:
        self._directory, self._patience = directory, patience
        self._ahead: float | None = None  # of this host's monotonic clock

    def is_left(self, owner: str, renewed: Path) -> bool:
        """Check whether an owner is gone; ``renewed`` is the file that it renews.

        Raises OSError where that cannot be looked at.
        """
        host, pid, ticks = parts(owner)
        number = whole_number(pid)
        if number is not None and host == os.uname().nodename:
            return str(start_ticks(number)) != ticks
        return self.silence(renewed) > self._patience

    def silence(self, renewed: Path) -> float:
        """Return the seconds for which a file was not renewed."""
        then = shared_look.modified(renewed)
        if self._ahead is None:
            now = then
            with contextlib.suppress(OSError):
                now = shared_look.storage_time(self._directory)
            self._ahead = now - time.monotonic()
        return time.monotonic() + self._ahead - then
