"""Detection of network storage, where each look at a file is a remote call."""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "9p"),
        *("orangefs", "pvfs2", "panfs", "wekafs", "glusterfs", "virtiofs", "fuse.glusterfs"),
        *("fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.juicefs", "fuse.rclone"),
        *("fuse.s3fs", "fuse.sshfs"),
    }
)
_MOUNTS = Path("/proc/self/mountinfo")


def is_remote(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Check whether ``path`` lies, or will lie, on the file system of another machine.

    ``HPCRUN_STORAGE=network`` or ``local`` in the environment overrides the answer, which is False
    where ``mounts``, in the format of ``/proc/PID/mountinfo`` (proc(5)), cannot be read.
    """
    override = os.environ.get("HPCRUN_STORAGE")
    if override in ("network", "local"):
        return override == "network"
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    real = os.path.realpath(path)
    longest, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # The last of several mounts at one point hides the others.
        if inside and len(point) >= longest:
            longest, kind = len(point), after.split(" ")[0]
    return kind in NETWORK
