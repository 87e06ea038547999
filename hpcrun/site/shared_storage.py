"""Where a user's files may lie on a cluster, and on which file system that is, with room.

Which file systems the nodes share is not asked of them: the type of a mount tells it, or leaves it
open. Directories are looked at in threads, since a server that is gone does not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrun import mounts
from hpcrun.mounts import MountPoint

# Seconds for all looks together; the most mounts that are searched for a directory of the user's.
PATIENCE = 3.0
_MOST_MOUNTS = 32
# Variables by which sites name a user's own directory for large files, the best ones first.
VARIABLES = ("WORK", "SCRATCH", "PSCRATCH", "GSCRATCH", "VSC_SCRATCH")
# Mounts with such points hold no users' data.
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/boot", "/usr", "/opt", "/etc", "/var/lib", "/snap")


@dataclass(frozen=True)
class StoragePlace:
    """A directory in which a user may put files."""

    path: str
    source: str
    """What names it: ``$WORK``, ``/lustre`` (a mount), ``$HOME``."""
    kind: str = ""
    """The type of its file system; empty where that is not known."""
    is_shared: bool = False
    """Its file system is of a type that other machines can have mounted, too."""
    free: int = 0
    """Bytes that the file system has left; a quota may allow less."""
    problem: str = ""
    """Why it cannot be used; empty if it can."""

    @property
    def is_usable(self) -> bool:
        """Check whether it is there and may be written."""
        return not self.problem


def read(
    environ: Mapping[str, str],
    user: str,
    mountinfo: Path = mounts.MOUNTINFO,
    patience: float = PATIENCE,
) -> list[StoragePlace]:
    """Return the directories that are the user's by name, in the order of `VARIABLES`, home last.

    A variable that is set is always among them, with what is wrong with it.
    """
    mounted = mounts.read(mountinfo)
    wanted = {f"${name}": environ[name] for name in VARIABLES if environ.get(name)}
    remote = [one.point for one in mounted if one.is_remote and not _is_system(one.point)]
    named = {point: [f"{point}/{user}", f"{point}/users/{user}"] for point in remote}
    home = {"$HOME": environ["HOME"]} if environ.get("HOME") else {}
    looks = [
        *(_Look(source, [path], mounted, is_named=True) for source, path in wanted.items()),
        *(_Look(point, paths, mounted) for point, paths in [*named.items()][:_MOST_MOUNTS]),
        *(_Look(source, [path], mounted, is_named=True) for source, path in home.items()),
    ]
    until = time.monotonic() + patience
    for look in looks:
        look.start()
    for look in looks:
        look.join(max(0.0, until - time.monotonic()))
    found: dict[str, StoragePlace] = {}
    for look in looks:
        if (place := look.answer()) is not None:
            found.setdefault(place.path, place)
    return [*found.values()]


def _is_system(point: str) -> bool:
    return any(point == one or point.startswith(f"{one}/") for one in _SYSTEM)


class _Look(threading.Thread):
    """A look at the first of some directories that is there."""

    def __init__(
        self,
        source: str,
        paths: Iterable[str],
        mounted: list[MountPoint],
        *,
        is_named: bool = False,
    ) -> None:
        super().__init__(name=f"storage {source}", daemon=True)
        self._source, self._paths, self._mounted = source, [*paths], mounted
        self._is_named = is_named
        self._found: StoragePlace | None = None

    def run(self) -> None:
        for path in self._paths:
            self._found = self._look(path)
            if self._found is not None:
                return

    def _look(self, path: str) -> StoragePlace | None:
        if not path.startswith("/"):
            return StoragePlace(path, self._source, problem="is no absolute path")
        try:
            real = os.path.realpath(path)
            mount = mounts.of(real, self._mounted)
            kind, is_shared = (mount.kind, mount.is_remote) if mount else ("", False)
            owner = os.stat(real).st_uid
            room = os.statvfs(real)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            found = StoragePlace(path, self._source, problem=said)
            return found if self._is_named else None
        if not self._is_named and owner != os.getuid():
            return None
        problem = "" if os.access(real, os.W_OK | os.X_OK) else "may not be written by you"
        if not os.path.isdir(real):  # noqa: PTH112
            problem = "is no directory"
        free = room.f_bavail * room.f_frsize
        return StoragePlace(path, self._source, kind, is_shared, free, problem)

    def answer(self) -> StoragePlace | None:
        """Return what was found so far; a place that does not answer is one with a problem."""
        if self.is_alive() and (self._is_named or self._found is None):
            return StoragePlace(self._paths[0], self._source, problem="does not answer")
        return self._found
