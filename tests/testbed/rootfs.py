"""The root directory of the bed's machines: a copy-on-write view of a real one."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from . import clock, kernel, network
from .layout import LOGIN, Layout, is_ipv6

# A machine's own: gone with its power, invisible to the others. Sizes are limits, not reserves.
PRIVATE = {"/tmp": "mode=1777,size=4g", "/run": "mode=755,size=64m"}
LIGHT = Path(__file__).parent / "light"
_SHM = "mode=1777,size=2g"


def build(
    layout: Layout,
    lower: str,
    user: tuple[str, int],
    nodes: list[str],
    paths: list[tuple[str, bool]],
    light: bool,
) -> None:
    """Mount the common root directory, in the mount namespace of the bed.

    Parameters
    ----------
    lower
        The root directory to show: "/" or that of another distribution.
    user
        Name and id of the ordinary user.
    paths
        What to show at its own path, and whether read-only.
    light
        See `lighten`.
    """
    root, overlay = str(layout.rootfs), layout.overlay
    kernel.mount("tmpfs", str(overlay), "tmpfs", 0, "mode=755,size=1g")
    for name in ("upper", "work"):
        (overlay / name).mkdir()
    options = f"lowerdir={lower},upperdir={overlay}/upper,workdir={overlay}/work"
    kernel.mount("overlay", root, "overlay", 0, options)
    for top in ("proc", "sys", "dev", *(path[1:] for path in PRIVATE)):
        Path(root, top).mkdir(exist_ok=True)
    kernel.bind("/dev", f"{root}/dev")
    expose(root, paths)
    if light:
        lighten(root, paths)
    Path(root, "etc/slurm").mkdir(exist_ok=True)
    kernel.bind(str(layout.etc), f"{root}/etc/slurm", deep=False)
    _write_names(Path(root, "etc"), layout, user, nodes)
    Path(root, clock.PRELOADED).touch()


def _write_names(etc: Path, layout: Layout, user: tuple[str, int], nodes: list[str]) -> None:
    name, uid = user

    def replace(file: str, text: str) -> None:
        (etc / file).unlink(missing_ok=True)
        (etc / file).write_text(text)

    def without(file: str) -> str:
        lines = (etc / file).read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(name + ":"))

    entry = f"{name}:x:{uid}:{uid}:test bed:{layout.home}:/bin/bash\n"
    replace("passwd", without("passwd") + entry)
    replace("group", without("group") + f"{name}:x:{uid}:\n")
    replace("hosts", network.hosts_file([LOGIN, *nodes], ipv6=is_ipv6(layout)))
    # Asking a name server that cannot be reached costs time and prints warnings.
    lines = (etc / "nsswitch.conf").read_text().splitlines(keepends=True)
    others = "".join(line for line in lines if not line.startswith("hosts:"))
    replace("nsswitch.conf", others + "hosts: files\n")
    replace("resolv.conf", "")


def expose(root: str, paths: list[tuple[str, bool]]) -> None:
    """Show each path at the same place below `root`, reachable for everybody.

    A closed directory on the way (a 0700 home, say) is covered by an open, empty one, in which
    nothing but the wanted path appears.
    """
    for path, read_only in paths:
        for parent in reversed(Path(path).parents):
            inside = Path(root + str(parent))
            if inside.is_dir() and not inside.stat().st_mode & 0o001:
                kernel.mount("tmpfs", str(inside), "tmpfs", 0, "mode=755,size=1m")
            inside.mkdir(mode=0o755, exist_ok=True)
        _show(path, Path(root + path), read_only)


def lighten(root: str, paths: list[tuple[str, bool]]) -> None:
    """Lay what leaves out some imports over this Python's packages, if they are shown there."""
    packages = os.path.realpath(sysconfig.get_path("purelib"))
    if any(Path(packages).is_relative_to(path) for path, _ in paths):
        options = f"lowerdir={LIGHT}:{packages}"
        kernel.mount("overlay", root + packages, "overlay", 0, options)


def _show(path: str, inside: Path, read_only: bool) -> None:
    inside.mkdir(mode=0o755, exist_ok=True)
    if os.stat(path).st_mode & 0o001:
        # What is writable is the bed's directory, whose own mounts are nobody's business.
        kernel.bind(path, str(inside), read_only=read_only, deep=read_only)
        return
    kernel.mount("tmpfs", str(inside), "tmpfs", 0, "mode=755,size=1m")
    for entry in os.scandir(path):
        target = inside / entry.name
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
            continue
        target.mkdir() if entry.is_dir() else target.touch()
        kernel.bind(entry.path, str(target), read_only=read_only)


def make_private(root: str, paths: list[tuple[str, bool]], light: bool) -> None:
    """Give one machine, in its own mount namespace, its own /tmp, /run and /dev/shm."""
    kernel.mount("proc", f"{root}/proc", "proc")
    kernel.mount("sysfs", f"{root}/sys", "sysfs")
    kernel.mount("tmpfs", f"{root}/dev/shm", "tmpfs", 0, _SHM)
    for top, options in PRIVATE.items():
        kernel.mount("tmpfs", root + top, "tmpfs", 0, options)
        below = [item for item in paths if item[0].startswith(top + "/")]
        expose(root, below)
        if light:
            lighten(root, below)
