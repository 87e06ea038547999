"""The command lines of container runtimes: pure, but for a look at an image's directory.

The options follow their manuals: Apptainer 1.0 and later, Charliecloud 0.31 and later, bubblewrap
0.8, Pyxis 0.11 and later. Apptainer and Pyxis could not be had where this was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun.state.environment.environment_block import Container

# A runtime -> the programs that it may be.
PROGRAMS = {
    "apptainer": ("apptainer", "singularity"),
    "bubblewrap": ("bwrap",),
    "charliecloud": ("ch-run",),
}
# A directory that a program of a name in PATH is looked up in inside.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# ``sh`` stays, as runtimes that stay themselves turn a signal into exit code 1.
_KEEP_THE_CODE = ("sh", "-c", '"$@"; exit $?', "hpcrun")
# Of the host, where the image has such files to mount them over.
_NAMES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf")
_TOP = frozenset({"dev", "proc", "sys", "tmp"})


@dataclass(frozen=True)
class Mount:
    """A directory or file of the node, as the container sees it."""

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read ``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``; raise ValueError if wrong."""
        source, *rest = text.split(":")
        options = rest[1:]
        target = rest[0] if rest else source
        if not source or len(rest) > 2 or options not in ([], ["ro"], ["rw"]):
            raise ValueError("accepted is SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro")
        if rest and not target.startswith("/"):
            raise ValueError(f"the target {target!r} is not absolute")
        return cls(source, target, options == ["ro"])

    @property
    def words(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


def is_path(image: str) -> bool:
    """Check whether an image is a file or directory, rather than a name in a registry."""
    return image.startswith(("/", "./", "../", "~")) or image.endswith((".sif", ".sqsh", ".sqfs"))


def command(
    container: Container,
    program: str,
    mounts: Sequence[Mount],
    words: Sequence[str],
    *,
    can: Callable[[str], bool] = lambda option: False,
    gpus: str | None = None,
) -> list[str]:
    """Return the command line of ``words`` inside the container.

    Parameters
    ----------
    program
        The path of the runtime; unused for ``command``.
    can
        Tells whether the runtime of this version has an option.
    gpus
        ``nvidia`` or ``amd``, where the node has such GPUs.
    """
    inside = [*_KEEP_THE_CODE, *words]
    if container.runtime == "command":
        return [*_other(container, mounts), *inside]
    make = {"apptainer": _apptainer, "bubblewrap": _bubblewrap, "charliecloud": _charliecloud}
    return [program, *make[str(container.runtime)](container, mounts, can, gpus), *inside]


def _apptainer(
    container: Container, mounts: Sequence[Mount], can: Callable[[str], bool], gpus: str | None
) -> list[str]:
    flag = {"nvidia": ["--nv"], "amd": ["--rocm"]}.get(gpus or "", [])
    home = [] if container.home else ["--no-home"]
    binds = [f"--bind={mount.words}" for mount in mounts]
    return ["exec", *home, *flag, *binds, *container.options, container.image]


def _charliecloud(
    container: Container, mounts: Sequence[Mount], can: Callable[[str], bool], gpus: str | None
) -> list[str]:
    # Where a place to mount at is not in the image, it can be made in memory since 0.33.
    fake = ["--write-fake"] if can("--write-fake") else []
    home = ["--home"] if container.home else []
    binds = [f"--bind={mount.source}:{mount.target}" for mount in mounts]
    return [*fake, *home, *binds, *container.options, container.image, "--"]


def _bubblewrap(
    container: Container, mounts: Sequence[Mount], can: Callable[[str], bool], gpus: str | None
) -> list[str]:
    """Show the image's top directories in an empty root, where places to mount at can be made."""
    found = ["--die-with-parent"]
    image = Path(container.image)
    for entry in sorted(os.scandir(image), key=lambda entry: entry.name):
        if entry.is_symlink():
            found += ["--symlink", str(Path(entry.path).readlink()), f"/{entry.name}"]
        elif entry.name not in _TOP:
            found += ["--ro-bind", entry.path, f"/{entry.name}"]
    found += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"]
    found += ["--tmpfs", "/tmp"]  # noqa: S108 - in the container
    for name in _NAMES:
        if Path(container.image + name).is_file() and Path(name).is_file():
            found += ["--ro-bind", name, name]
    for mount in mounts:
        kind = "--ro-bind" if mount.read_only else "--bind"
        found += [kind, mount.source, mount.target]
    return [*found, *container.options, "--"]


def _other(container: Container, mounts: Iterable[Mount]) -> list[str]:
    found: list[str] = []
    for word in container.command:
        if word != "{mounts}":
            found.append(word.replace("{image}", container.image))
            continue
        for mount in mounts:
            found += [
                part.replace("{source}", mount.source).replace("{target}", mount.target)
                for part in container.mount_option
            ]
    return found


def srun_options(container: Container, mounts: Iterable[Mount]) -> list[str]:
    """Return Pyxis's options of srun."""
    shown = ",".join(mount.words for mount in mounts)
    home = "--container-mount-home" if container.home else "--no-container-mount-home"
    found = [f"--container-image={container.image}", f"--container-mounts={shown}", home]
    return [*found, "--container-workdir=/", *container.options]
