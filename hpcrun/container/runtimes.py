"""Container runtimes: the command line of each, pure but for a look at an image's directory.

The options follow their manuals: Apptainer 1.0 and later, Charliecloud 0.31 and later, bubblewrap
0.8, Pyxis 0.11 and later. Apptainer and Pyxis could not be had where this was written.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrun.extensions import RUNTIMES
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.environment.environment_block import Container

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


@dataclass(frozen=True)
class RuntimeProgram:
    """The program of a runtime on one node."""

    path: str
    """Empty for a runtime without `ContainerRuntime.programs`."""
    can: Callable[[str], bool] = lambda option: False
    """Checks whether its version has an option, such as ``--write-fake``."""
    gpus: str | None = None
    """``nvidia`` or ``amd``, where the node has such GPUs."""


class ContainerRuntime(ABC):
    """One way of starting a command in a container; a runtime is a class below this one."""

    programs: tuple[str, ...] = ()
    """The names of its program, of which the first that is on PATH is taken; none for one that the
    spec or Slurm starts."""
    is_of_srun = False
    """Its containers are started by srun, with `srun_options`, in place of a command line."""
    image_kinds = "a directory"
    """The images that it starts, in words, where it `fetches` none."""
    image_suffix = "dir"
    """The end of the name of such an image."""
    needs_image = True
    """``environment.container.image`` must be given."""
    needs_directory = False
    """The image must be a directory."""
    has_read_only_mounts = True
    """A mount may be ``SOURCE:TARGET:ro``."""
    keeps_path = False
    """Inside, PATH is what it was outside, in place of the image's."""
    catches_stop = False
    """Its program ends its containers on SIGTERM, which is kept from it."""

    def fetches(self, image: str) -> bool:
        """Check whether an image that is no file's path is one that it fetches by its name."""
        return False

    @abstractmethod
    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        """Return the words before a command that have it run in the container."""

    def srun_options(self, container: Container, mounts: Sequence[Mount]) -> list[str]:
        """Return the options of srun that have its command run in the container."""
        return []


class Apptainer(ContainerRuntime):
    """Apptainer, or Singularity as it was called."""

    programs = ("apptainer", "singularity")

    def fetches(self, image: str) -> bool:
        return "://" in image

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        flag = {"nvidia": ["--nv"], "amd": ["--rocm"]}.get(program.gpus or "", [])
        home = [] if container.home else ["--no-home"]
        binds = [f"--bind={mount.words}" for mount in mounts]
        return [program.path, "exec", *home, *flag, *binds, *container.options, container.image]


class Charliecloud(ContainerRuntime):
    """Charliecloud's ch-run."""

    programs = ("ch-run",)
    image_kinds, image_suffix = "a directory or a squashfs", "sqfs"
    has_read_only_mounts = False
    keeps_path = True
    # Its own handler of TERM would take a squashfs away from under the ranks.
    catches_stop = True

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        # Where a place to mount at is not in the image, it can be made in memory since 0.33.
        fake = ["--write-fake"] if program.can("--write-fake") else []
        home = ["--home"] if container.home else []
        binds = [f"--bind={mount.source}:{mount.target}" for mount in mounts]
        return [program.path, *fake, *home, *binds, *container.options, container.image, "--"]


class Bubblewrap(ContainerRuntime):
    """bubblewrap's bwrap: the image's top directories in an empty root, where places to mount at
    can be made."""

    programs = ("bwrap",)
    needs_directory = True
    keeps_path = True

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        found = [program.path, "--die-with-parent"]
        image = Path(container.image)
        for entry in sorted(os.scandir(image), key=lambda entry: entry.name):
            if entry.is_symlink():
                found += ["--symlink", str(Path(entry.path).readlink()), f"/{entry.name}"]
            elif entry.name not in _TOP:
                found += ["--ro-bind", entry.path, f"/{entry.name}"]
        found += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
        found += ["--ro-bind", "/sys", "/sys"]
        found += ["--tmpfs", "/tmp"]  # noqa: S108 - in the container
        for name in _NAMES:
            if Path(container.image + name).is_file() and Path(name).is_file():
                found += ["--ro-bind", name, name]
        for mount in mounts:
            kind = "--ro-bind" if mount.read_only else "--bind"
            found += [kind, mount.source, mount.target]
        return [*found, *container.options, "--"]


class OtherCommand(ContainerRuntime):
    """Any other, by the words of ``environment.container.command``."""

    needs_image = False
    has_read_only_mounts = False

    def fetches(self, image: str) -> bool:
        return True

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
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


class Pyxis(ContainerRuntime):
    """Pyxis, a plugin of Slurm."""

    is_of_srun = True

    def fetches(self, image: str) -> bool:
        return True

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        return []

    def srun_options(self, container: Container, mounts: Sequence[Mount]) -> list[str]:
        shown = ",".join(mount.words for mount in mounts)
        home = "--container-mount-home" if container.home else "--no-container-mount-home"
        found = [f"--container-image={container.image}", f"--container-mounts={shown}", home]
        return [*found, "--container-workdir=/", *container.options]


def of(container: Container) -> ContainerRuntime:
    """Return the runtime of a container, hpcrun's own or a package's."""
    return RUNTIMES.load(str(container.runtime))()


def command(
    container: Container, program: RuntimeProgram, mounts: Sequence[Mount], words: Sequence[str]
) -> list[str]:
    """Return the command line of ``words`` inside the container."""
    return [*of(container).command_line(program, container, mounts), *_KEEP_THE_CODE, *words]
