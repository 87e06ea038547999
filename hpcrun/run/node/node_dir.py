"""Node-local directories of attempts, and the removal of abandoned ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

from hpcrun.state.node_layout import PREFIX, NodePaths

_REMOVED = f"{PREFIX}removed-"
# Of the name of an agent's directory the part that tells the start of its job.
_AGENTS = re.compile(f"{PREFIX}[0-9a-f]{{12}}(?:-|$)")
# Seconds after which a directory without a lock is not about to get one.
_TORN_AFTER = 3600.0


class NodeDir:
    """A new directory below the node's temporary one, locked for as long as its agent lives.

    Its name has that of this ``start`` of the job, so that it is usually the same on every node.
    Only its owner can read it, and mkdir refuses an existing one, which another user may have
    prepared: that costs the usual name. What an agent of this start has left, which was killed
    with its step, is taken over. Each attempt has a directory in it.
    """

    def __init__(self, start: str, node: str) -> None:
        base = Path(tempfile.gettempdir())
        name = PREFIX + start
        for self.path in (base / name, base / f"{name}-{node}"):
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                lock = _hold(self.path)
                break
            if (left := _take_over(self.path)) is not None:
                lock = left
                break
        else:
            self.path = Path(tempfile.mkdtemp(dir=base, prefix=f"{name}-{node}-"))
            lock = _hold(self.path)
        self._lock = lock
        self._aliases: dict[Path, int] = {}
        sweep(base)

    def begin(self, attempt: int) -> Path:
        """Make the directory of an attempt, and remove those before it in the background."""
        node = NodePaths(self.path)
        before, path = node.attempts(), node.attempt(attempt)
        if path in before:
            # Of an agent that was killed in this very attempt.
            shutil.rmtree(path, ignore_errors=True)
            before.remove(path)
        path.mkdir()
        for old in before:
            threading.Thread(target=shutil.rmtree, args=(old, True), daemon=True).start()
        return path

    def show(self, code: Path, at: Path) -> None:
        """Have an attempt's copy of the code be found at a path that is the same on all nodes.

        Another node's agent may have done so, where nodes share their temporary directories. Raises
        OSError if it cannot be.
        """
        directory = at.parent.parent
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            self._aliases[directory] = _hold(directory)
        if not _is_mine(directory):
            raise OSError(f"{directory} is another user's")
        with contextlib.suppress(FileExistsError):
            at.parent.mkdir(exist_ok=True)
            at.symlink_to(code)

    def remove(self) -> None:
        for directory, lock in {self.path: self._lock, **self._aliases}.items():
            # Whose agent is killed in the midst of it goes with the next one's sweep.
            discard(directory)
            os.close(lock)


def _is_mine(directory: Path) -> bool:
    return not directory.is_symlink() and directory.stat().st_uid == os.geteuid()


def _hold(directory: Path) -> int:
    """Lock a directory. The lock is renamed once it is held, so that it never looks free."""
    lock = NodePaths(directory).lock
    new = lock.with_name(f".{lock.name}")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    new.rename(lock)
    return descriptor


def _take_over(directory: Path) -> int | None:
    """Return the lock of a directory that an agent has left; None if it is somebody's."""
    with contextlib.suppress(OSError):
        if not _is_mine(directory):
            return None
        lock = NodePaths(directory).lock
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another agent may have taken its name for a new directory before it was locked.
            if os.path.samestat(os.fstat(descriptor), lock.lstat()):
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
    return None


def sweep(base: Path) -> None:
    """Remove the directories of this user's agents that were killed."""
    for directory in base.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if not _is_mine(directory):
                continue
            if directory.name.startswith(_REMOVED) or _is_torn(directory):
                shutil.rmtree(directory, ignore_errors=True)
            elif (lock := _take_over(directory)) is not None:
                # Who takes the lock afterwards finds that it is another one's.
                discard(directory)
                os.close(lock)


def _is_torn(directory: Path) -> bool:
    """Check for an agent's directory that has no lock: its agent was killed as it came or went."""
    lock = NodePaths(directory).lock
    old = time.time() - directory.stat().st_mtime > _TORN_AFTER
    return old and _AGENTS.match(directory.name) is not None and not os.path.lexists(lock)


def discard(directory: Path) -> None:
    """Remove a directory under another name, so that nobody takes it for one that stays."""
    name = directory.with_name(_REMOVED + os.urandom(8).hex())
    with contextlib.suppress(OSError):
        directory.rename(name)
        shutil.rmtree(name, ignore_errors=True)
