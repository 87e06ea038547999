"""The ``environment`` block of a spec: Python, container, variables and secrets of a job."""

from __future__ import annotations

from typing import Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Container:
    """The container that the ranks run in; see docs/containers.md. Supervisor and agents stay
    outside, where Slurm is."""

    image: str = ""
    """The image: a directory or a file of the runtime's kind, relative to this file; for Apptainer
    and Pyxis also a name such as ``docker://pytorch/pytorch`` or ``nvcr.io#nvidia/pytorch:25.09``.
    """

    runtime: Literal["apptainer", "bubblewrap", "charliecloud", "command", "pyxis"] | None = None
    """What starts it: ``apptainer`` (or singularity), ``charliecloud`` (ch-run, a directory or a
    squashfs), ``bubblewrap`` (bwrap, a directory), ``pyxis`` (options of srun), or ``command``,
    which is any other, as ``command`` says."""

    python: str = "python3"
    """The Python in the image, 3.10 or newer; it has torch and deepspeed. A name is looked up in
    the image."""

    mounts: list[str] = field(default_factory=list)
    """What of the node the container sees, as ``SOURCE``, ``SOURCE:TARGET`` or
    ``SOURCE:TARGET:ro``. hpcrun mounts what it needs itself: the root, the node's temporary
    directory, devices, and the data that the spec names, ``code.link`` and ``secrets_file``."""

    home: bool = False
    """Mount the home directory. Without, HOME is a directory of the attempt's on the node."""

    options: list[str] = field(default_factory=list)
    """Further options of the runtime, such as ``--set-env`` of ch-run; with Pyxis, of srun."""

    command: list[str] = field(default_factory=list)
    """For ``runtime: command``, the words before the program: ``{image}`` is the image, and the
    word ``{mounts}`` becomes ``mount_option`` for each mount."""

    mount_option: list[str] = field(default_factory=lambda: ["--volume={source}:{target}"])
    """For ``runtime: command``, the words of one mount, with ``{source}`` and ``{target}``."""


@spec_dataclass
class Environment:
    """Where and with what the job runs. Nothing of the submitting shell's environment leaks in."""

    python: str | None = None
    """The job's Python, which has torch and deepspeed; null for the one that runs hpcrun. A name
    without a slash is looked up after the setup lines, a relative path is relative to this file.
    `hpcrun submit` starts it once to ask for its libraries."""

    venv: Literal["live", "frozen"] = "live"
    """``frozen``: what the Python has is copied at submission and unpacked on each node before its
    ranks start; see docs/environment.md. ``live``: what it has when a job starts; a change since
    submission is told."""

    lock: str | None = None
    """With ``venv: frozen``, the file from which the environment is built, by uv or pip, in place
    of a copy: requirements with ``==`` and hashes, ``uv.lock`` or ``pylock.toml``; relative to this
    file."""

    setup: list[str] = field(default_factory=list)
    """Shell lines run first on the batch node, after the cluster profile's: ``module load cuda``.
    `hpcrun submit` also runs them where it is typed, before it asks the Python."""

    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the job, over those of the cluster profile. They land in the script,
    which is stored: secrets belong in ``secrets_file``. Those with ``${hpcrun:…}`` are for the
    ranks alone."""

    secrets_file: str | None = None
    """A file of ``NAME=value`` lines, yours and readable by you alone; read as the job starts."""

    container: Container | None = None
    """The container that the ranks run in; see docs/containers.md. ``python`` is then what runs
    outside of it, and needs neither torch nor deepspeed."""

    @property
    def is_frozen(self) -> bool:
        return self.venv == "frozen"
