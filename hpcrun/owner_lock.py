"""Locks on shared storage, their owners, ``HOST:PID:TICKS``, and whether one is gone.

On its own host its process tells. On another one its silence does, by the storage's clock: those of
two hosts need not agree.

A lock is a directory with one file, whose name is its owner. It appears whole, by a rename, which
fails while the directory in its place holds a file. Whoever takes over a stale lock removes the
file of that very owner, so that two who do so at once cannot end the lock of a third.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
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


def take(
    lock: Path, is_left: Callable[[str], bool], waits: Callable[[str], object], *, pause: float
) -> Path:
    """Take a lock, after waiting while another owner holds it; return the file to renew.

    Every ``pause`` seconds ``is_left`` tells whether the owner is gone; ``waits`` gets one that is
    not. Raises FileNotFoundError without the lock's directory, OSError if nothing can be written.
    """
    owner = myself()
    while not _appears(lock, owner):
        # Its owner's name may not be here yet, or have just gone.
        while (other := next(iter(shared_look.names(lock)), None)) is not None:
            if is_left(other):
                (lock / other).unlink(missing_ok=True)
                break
            waits(other)
            time.sleep(pause)
        else:
            time.sleep(pause)
    return lock / owner


def leave(mine: Path) -> None:
    """Give a lock up that was taken. Best effort: another one may have taken it over."""
    with contextlib.suppress(OSError):
        mine.unlink(missing_ok=True)
        mine.parent.rmdir()


def _appears(lock: Path, owner: str) -> bool:
    """Try to create the lock; return False if another owner was first."""
    # Hidden, as who begins now takes other names for somebody's files.
    draft = lock.with_name(f".{lock.name}.{owner}.{threading.get_ident()}")
    try:
        draft.mkdir()
        (draft / owner).touch()
        draft.rename(lock)
        return True
    except OSError as error:
        leave(draft / owner)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    return False


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
