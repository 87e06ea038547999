"""Mounted file systems, as the kernel lists them: the one of a path, and whether it is remote.

The list is read without touching any of them, so that a server which does not answer blocks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hpcrun.shared_dataclass import dataclass

_NETWORK_TEXT = """
nfs nfs4 lustre gpfs beegfs ceph cifs smb3 afs 9p orangefs pvfs2 panfs wekafs glusterfs virtiofs
"""
NETWORK = frozenset(_NETWORK_TEXT.split())
"""Types of file systems of other machines, beside those of programs, ``fuse.…``."""
_LOCAL_PROGRAMS_TEXT = """
fuse.fuse-overlayfs fuse.squashfuse fuse.squashfuse_ll fuse.lxcfs fuse.portal fuse.gvfsd-fuse
fuse.snapfuse fuse.ntfs-3g fuse.fuse2fs
"""
LOCAL_PROGRAMS = frozenset(_LOCAL_PROGRAMS_TEXT.split())
"""Programs whose file systems are this machine's; any other may ask another one."""
MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class MountPoint:
    """A mounted file system."""

    point: str
    kind: str
    """Its type, such as ``nfs4``."""

    @property
    def is_remote(self) -> bool:
        """Check whether it is another machine's."""
        is_programs = self.kind.startswith("fuse.") and self.kind not in LOCAL_PROGRAMS
        return self.kind in NETWORK or is_programs

    def holds(self, path: str) -> bool:
        """Check whether an absolute path without links lies below its point."""
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


def read(mountinfo: Path = MOUNTINFO) -> list[MountPoint]:
    """Return what is mounted (proc(5), ``/proc/PID/mountinfo``); empty where that is not known."""
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) >= 5 and after:
            point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
            found.append(MountPoint(point, after.split(" ")[0]))
    return found


def of(path: str, mounted: Iterable[MountPoint]) -> MountPoint | None:
    """Return what an absolute path without links lies on, whether or not it exists."""
    best = None
    for one in mounted:
        # The last of several mounts at one point hides the others.
        if one.holds(path) and (best is None or len(one.point) >= len(best.point)):
            best = one
    return best
