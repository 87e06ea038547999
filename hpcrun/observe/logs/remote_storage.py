"""Detection of network storage, where each look at a file is a remote call."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun import mounts


def is_remote(path: Path, mountinfo: Path = mounts.MOUNTINFO) -> bool:
    """Check whether ``path`` lies, or will lie, on the file system of another machine.

    ``HPCRUN_STORAGE=network`` or ``local`` in the environment overrides the answer, which is False
    where ``mountinfo`` cannot be read.
    """
    override = os.environ.get("HPCRUN_STORAGE")
    if override in ("network", "local"):
        return override == "network"
    found = mounts.of(os.path.realpath(path), mounts.read(mountinfo))
    return found is not None and found.is_remote
