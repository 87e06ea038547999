"""Where everything of one bed lies. A bed is a directory; every other fact is in it."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "hb-"
REPOSITORY = Path(__file__).resolve().parents[2]
LOGIN = "login"

# A socket of slurmstepd (BASE/nodes/n1/spool/n1_12345.4294967291) must fit in 108 bytes.
_LONGEST_BASE = 48


@dataclass(frozen=True)
class Layout:
    """The files of the bed at `base`."""

    base: Path

    @property
    def name(self) -> str:
        """Unique on this machine; also the name of the bed's cgroups."""
        return self.base.name

    @property
    def shared(self) -> Path:
        """The "shared file system": the ordinary user's, at the same path everywhere."""
        return self.base / "shared"

    @property
    def home(self) -> Path:
        """The ordinary user's home directory."""
        return self.shared / "home"

    @property
    def etc(self) -> Path:
        """What the bed's machines see as /etc/slurm."""
        return self.base / "etc"

    @property
    def logs(self) -> Path:
        """Logs of every daemon and of every machine's start."""
        return self.base / "log"

    @property
    def state(self) -> Path:
        """What the bed was made with and the process ids of its machines' process 1."""
        return self.base / "state.json"

    @property
    def lock(self) -> Path:
        """Held by the guardian as long as it lives."""
        return self.base / "lock"

    @property
    def secret(self) -> Path:
        """Only root's: munge's key."""
        return self.base / "secret"

    @property
    def munge_key(self) -> Path:
        """One key for all the bed's munge daemons."""
        return self.secret / "munge.key"

    @property
    def database(self) -> Path:
        """MariaDB's socket and, on a tmpfs that only the bed sees, its data."""
        return self.base / "database"

    @property
    def devices(self) -> Path:
        """The device nodes that stand for GPUs."""
        return self.base / "devices"

    @property
    def rootfs(self) -> Path:
        """Where the bed mounts the root directory of its machines (empty seen from outside)."""
        return self.base / "rootfs"

    @property
    def overlay(self) -> Path:
        """Where the bed mounts the memory that takes what its machines write to their root."""
        return self.base / "overlay"

    @property
    def storage_client(self) -> Path:
        """The program by which each machine sees the shared file system."""
        return self.base / "nfs_client"

    def clock(self, ahead: int) -> Path:
        """The library by which programs of a machine see a clock that is so many seconds ahead."""
        return self.base / f"clock{ahead:+d}.so"

    def storage_control(self, machine: str) -> Path:
        """What a machine's client is told, and what it counts."""
        return self.base / f"nfs-{machine}"

    def pid_file(self, machine: str) -> Path:
        """Outer process id of a machine's process 1; there is none while it is off."""
        return self.base / "nodes" / machine / "pid"

    def spool(self, machine: str) -> Path:
        """slurmd's (on the login node: slurmctld's) state, which outlives a power loss."""
        return self.base / "nodes" / machine / "spool"

    def alive(self) -> bool:
        """Say whether a guardian still looks after this bed."""
        try:
            with self.lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False


def bases() -> Path:
    """Return the directory that beds are made in."""
    chosen = Path(os.environ.get("TMPDIR") or "/var/tmp")
    return chosen if len(str(chosen)) <= _LONGEST_BASE - 16 else Path("/var/tmp")


def create() -> Layout:
    """Make the directory of a new bed."""
    layout = Layout(Path(tempfile.mkdtemp(prefix=PREFIX, dir=bases())).resolve())
    layout.base.chmod(0o755)
    for path in (layout.etc, layout.logs, layout.devices, layout.rootfs, layout.overlay):
        path.mkdir()
    for path in (layout.secret, layout.database):
        path.mkdir(mode=0o700)
    return layout


def existing() -> Iterator[Layout]:
    """Yield every bed on this machine, dead ones too."""
    for path in sorted(bases().glob(PREFIX + "*")):
        if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid():
            yield Layout(path.resolve())


def _settings(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(layout.state.read_text())["settings"]
    return found


def is_light(layout: Layout) -> bool:
    """Check whether the Python of the bed leaves out some imports."""
    return bool(_settings(layout)["light"])


def is_ipv6(layout: Layout) -> bool:
    """Check whether the bed's machines have no addresses but IPv6."""
    return bool(_settings(layout)["ipv6"])


def visible_paths(layout: Layout) -> list[tuple[str, bool]]:
    """Return what must be at the same path inside: (path, whether it is read-only there)."""
    wanted = {str(REPOSITORY): True, sys.prefix: True, sys.base_prefix: True}
    # What a .pth file of the environment adds, such as the packages of another one.
    packages = [Path(path) for path in sys.path if path.endswith("/site-packages")]
    wanted |= {
        str(path): True
        for path in packages
        if not any(path.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))
    }
    wanted |= dict.fromkeys(_settings(layout)["visible"], True)
    wanted[str(layout.base)] = False
    # The outer one of two nested paths first, or it would cover the inner one.
    return sorted((os.path.realpath(path), locked) for path, locked in wanted.items())
