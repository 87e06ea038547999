"""What the test bed needs of the machine, checked before anything is started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from . import cgroups

VERSIONS = ("22.05", "24.11")
COMPLETE = ".hpcrun-testbed-complete"

_COMMANDS = (
    "gcc",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "srun",
    "munged",
    "mariadbd",
    "ip",
    "nsenter",
    "sshd",
)
# As the bed's machines have it: the tests' own leads to no client of Slurm.
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_INSTALL = "run tests/testbed/install.sh"


class Unavailable(RuntimeError):
    """This machine cannot carry the test bed; the message says why and what to do."""


def newer_root() -> Path:
    """Return where the distribution with the newer Slurm lies (or would)."""
    chosen = os.environ.get("HPCRUN_TESTBED_SLURM24")
    if chosen:
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hpcrun-testbed" / "slurm-24.11"


def missing(version: str) -> str | None:
    """Say why a cluster of this Slurm version cannot be had here, or None if it can."""
    if os.getuid() != 0:
        return "the test bed needs root (namespaces, mounts, cgroups)"
    absent = [name for name in _COMMANDS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not installed: {_INSTALL}"
    if not Path("/usr/include/fuse3").exists():
        return f"libfuse3-dev is not installed: {_INSTALL}"
    lacking = sorted(set(cgroups.NEEDED) - set(cgroups.hierarchies()))
    if lacking:
        return f"no cgroup v1 hierarchy is mounted for {', '.join(lacking)}"
    if version == "24.11":
        root = newer_root()
        if not (root / COMPLETE).exists():
            return f"no root directory with Slurm 24.11 at {root}: {_INSTALL}"
        if Path(sys.base_prefix).resolve() == Path("/usr"):
            return "Slurm 24.11 runs in another distribution, which cannot take Python from /usr"
    return None


def lower_root(version: str) -> str:
    """Return the root directory that the machines of a cluster show."""
    return "/" if version == "22.05" else str(newer_root().resolve())
