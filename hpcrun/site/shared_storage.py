"""Where a user's files may lie on a cluster, and on which file system that is, with room.

Which file systems the nodes share is not asked of them: the type of a mount tells it, or leaves it
open. Directories are looked at in threads, since a server that is gone does not answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcrun import mounts
from hpcrun.mounts import MountPoint
from hpcrun.slurm.background import BackgroundCall

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
    remote = [one.point for one in mounted if one.is_remote and not _is_system(one.point)]
    looks = [(f"${name}", [environ[name]], True) for name in VARIABLES if environ.get(name)]
    for point in [*dict.fromkeys(remote)][:_MOST_MOUNTS]:
        looks.append((point, [f"{point}/{user}", f"{point}/users/{user}"], False))
    if environ.get("HOME"):
        looks.append(("$HOME", [environ["HOME"]], True))
    until = time.monotonic() + patience
    calls = [BackgroundCall(partial(_first, mounted, *look)) for look in looks]
    found: dict[str, StoragePlace] = {}
    for (source, paths, _), call in zip(looks, calls, strict=True):
        place: StoragePlace | None = StoragePlace(paths[0], source, problem="does not answer")
        if call.wait(max(0.0, until - time.monotonic())):
            place = call.result()
        if place is not None:
            found.setdefault(place.path, place)
    return [*found.values()]


def _is_system(point: str) -> bool:
    return any(point == one or point.startswith(f"{one}/") for one in _SYSTEM)


def _first(
    mounted: list[MountPoint], source: str, paths: list[str], is_named: bool
) -> StoragePlace | None:
    """Return the first of some directories that is there."""
    found = (_look(mounted, source, path, is_named) for path in paths)
    return next((one for one in found if one is not None), None)


def _look(mounted: list[MountPoint], source: str, path: str, is_named: bool) -> StoragePlace | None:
    if not path.startswith("/"):
        return StoragePlace(path, source, problem="is no absolute path")
    try:
        real = os.path.realpath(path)
        mount = mounts.of(real, mounted)
        kind, is_shared = (mount.kind, mount.is_remote) if mount else ("", False)
        owner = os.stat(real).st_uid
        room = os.statvfs(real)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        return StoragePlace(path, source, problem=said) if is_named else None
    if not is_named and owner != os.getuid():
        return None
    problem = "" if os.access(real, os.W_OK | os.X_OK) else "may not be written by you"
    if not os.path.isdir(real):  # noqa: PTH112
        problem = "is no directory"
    return StoragePlace(path, source, kind, is_shared, room.f_bavail * room.f_frsize, problem)
