"""The copy of one source on a node, shared by all jobs of its user that want the same files.

Its directory is private to the user, and named after the source and the sizes and times of its
files: what differs in one of them has a copy of its own. Jobs hold its lock together while they
use it, and one of them alone while it copies. The last to let go removes it; where that one was
killed, the next agent on the node does (`hpcrun.run.node.node_dir.sweep`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from hpcrun.run.copies import copied_files
from hpcrun.run.copies.copied_files import CopyMeter, CopySource, CopyStopped, SourceFile, key
from hpcrun.run.node.node_dir import discard
from hpcrun.state import files
from hpcrun.state.node_layout import PREFIX, SharedCopyPaths

_LOOK_EVERY = 0.2
# Some ten seconds of growing pauses.
_TRIES, _PAUSE = 100, 0.004


class SharedCopy:
    """A hold on the copy of a source, from `provide` to `release`."""

    def __init__(self, base: Path, source: CopySource, listed: Collection[SourceFile]) -> None:
        self._source, self._files = source, listed
        name = f"{PREFIX}data-{os.geteuid()}-{key(source, listed)}"
        # Whoever has made a directory of the usual name costs the name, and the sharing at most.
        for more in ("", "-1", "-2", f"-{os.urandom(4).hex()}"):
            self._paths = SharedCopyPaths(base / f"{name}{more}")
            if self._is_private():
                break
        self._lock: int | None = None
        self.path = self._paths.data / source.name

    def bytes_missing(self) -> int:
        """Return the bytes that are still to be copied."""
        return sum(file.size for file in self._missing())

    def provide(self, meter: CopyMeter, waits: Callable[[], None], room: Callable[[], None]) -> str:
        """Have the copy complete, and hold it; return ``copied``, ``kept`` or ``shared``.

        ``meter`` counts the bytes, ``waits`` is called when another job is copying the same, and
        ``room`` before bytes are copied: it raises OSError where the disk has too little. Raises
        OSError or SourceChanged if it could not be copied; what there is of it is removed,
        unless another job uses it.
        """
        how = "shared" if self._lock is None else "kept"
        for tried in range(_TRIES):
            if tried:
                import secrets

                # Two agents that both hold it, to copy, must not take turns at once for ever.
                meter.stop.wait(secrets.randbelow(tried + 1) * _PAUSE)
            if self._lock is None:
                self._lock = self._open_lock(meter, waits)
            is_complete = self._paths.complete.exists()
            if is_complete and not self._missing():
                meter.add(sum(file.size for file in self._files), copied=False)
                return how
            if not self._try(fcntl.LOCK_EX):
                # Another job copies, or reads. The hold is lost with a change of it that fails.
                self._let_go()
                how = "shared"
                if is_complete:
                    raise OSError("its copy on this node was changed, and another job reads it")
                continue
            self._copy(meter, room)
            # Not in one step: between, an agent may find it free and remove it.
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self._is_there(self._lock) and self._paths.complete.exists():
                return "copied"
            self._let_go()
        raise OSError("other agents remove the copy again and again")

    def release(self) -> None:
        """Let go of the copy, and remove it, or its parts, if nobody else holds it."""
        if self._lock is None and self._is_private():
            with contextlib.suppress(OSError):
                self._lock = os.open(self._paths.lock, os.O_RDWR | os.O_NOFOLLOW)
        if self._lock is not None:
            if self._try(fcntl.LOCK_EX):
                discard(self._paths.directory)
            self._let_go()

    def _copy(self, meter: CopyMeter, room: Callable[[], None]) -> None:
        """Copy what is missing, with nobody else in the directory."""
        try:
            self._paths.complete.unlink(missing_ok=True)
            lacking = self._missing()
            there = sum(f.size for f in self._files) - sum(f.size for f in lacking)
            meter.add(there, copied=False)
            room()
            self._paths.data.mkdir(exist_ok=True)
            if not (len(self._files) == 1 and not next(iter(self._files)).name):
                self.path.mkdir(exist_ok=True)
            self._fill(lacking, meter)
            files.write_json(self._paths.complete, {"source": self._source.path})
        except BaseException as error:
            if not isinstance(error, CopyStopped):
                discard(self._paths.directory)
            self._let_go()
            raise

    def _missing(self) -> list[SourceFile]:
        """Return the files whose copies are not there, or not as they should be."""
        return copied_files.missing(self._files, self.path)

    def _fill(self, lacking: list[SourceFile], meter: CopyMeter) -> None:
        """Copy the files that are missing, with nobody else in the directory."""
        copied_files.copy(self._source, lacking, self.path, meter)

    def _open_lock(self, meter: CopyMeter, waits: Callable[[], None]) -> int:
        """Return the lock, held together with others, of a directory that is there."""
        told = False
        while True:
            meter.add(0)
            with contextlib.suppress(FileExistsError):
                self._paths.directory.mkdir(mode=0o700)
            if not self._is_private():
                raise OSError(f"{self._paths.directory} is there, and not private to you")
            try:
                lock = os.open(self._paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if self._is_there(lock):
                    return lock
            except BlockingIOError:
                if not told:
                    told = True
                    waits()
                meter.stop.wait(_LOOK_EVERY)
            os.close(lock)

    def _is_private(self) -> bool:
        """Check that the directory is the user's alone, or is not there."""
        try:
            found = self._paths.directory.lstat()
        except FileNotFoundError:
            return True
        is_open = stat.S_IMODE(found.st_mode) & 0o077
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not is_open

    def _is_there(self, lock: int) -> bool:
        """Check that a lock is that of the directory, which was not removed and made anew."""
        try:
            return os.path.samestat(os.fstat(lock), self._paths.lock.lstat())
        except OSError:
            return False

    def _try(self, kind: int) -> bool:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self._is_there(self._lock)

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
