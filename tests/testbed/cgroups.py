"""A cgroup of its own per machine, in every v1 hierarchy, so that four nodes do not share one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from . import kernel

NEEDED = ("cpuset", "cpuacct", "devices", "freezer", "memory")


def hierarchies() -> dict[str, Path]:
    """Return where this machine mounts each v1 controller that Slurm uses."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(NEEDED):
                found.setdefault(controller, Path(where))
    return found


def create(name: str) -> None:
    """Make the cgroup `name` ("BED/MACHINE") in every hierarchy."""
    for controller, top in hierarchies().items():
        group = top
        for part in Path(name).parts:
            parent, group = group, group / part
            group.mkdir(exist_ok=True)
            if controller == "cpuset":
                # A cpuset is born empty, and then takes no process.
                for key in ("cpuset.cpus", "cpuset.mems"):
                    (group / key).write_text((parent / key).read_text())


def join(name: str) -> None:
    """Move this process to the cgroup `name`."""
    for top in set(hierarchies().values()):
        (top / name / "cgroup.procs").write_text("0")


def procs_files(name: str) -> list[str]:
    """Return the files through which a process joins `name`."""
    return [str(top / name / "cgroup.procs") for top in sorted(set(hierarchies().values()))]


def mount_all(target: Path) -> None:
    """Mount the hierarchies at `target`, as this cgroup namespace sees them."""
    outer = {
        line.split()[1]: line.split()[3]
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[2] == "cgroup"
    }
    for controller, top in hierarchies().items():
        options = set(outer[str(top)].split(",")) - {"rw", "ro", "relatime", "nosuid", "nodev"}
        (target / controller).mkdir()
        joint = ",".join(sorted(options - {"noexec"}))
        kernel.mount("cgroup", str(target / controller), "cgroup", 0, joint)


def remove(name: str, timeout: float = 5.0) -> bool:
    """Remove the cgroup `name` and all below it; False if processes were still in it."""
    deadline = time.monotonic() + timeout
    while True:
        left = False
        for top in set(hierarchies().values()):
            for group, _, _ in os.walk(top / name, topdown=False):
                try:
                    Path(group).rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    left = True
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.05)


def processes(name: str) -> list[int]:
    """Return the ids of the processes in `name` and below it."""
    pids: set[int] = set()
    for top in set(hierarchies().values()):
        for file in (top / name).rglob("cgroup.procs"):
            pids.update(int(pid) for pid in file.read_text().split())
    return sorted(pids - {0})
