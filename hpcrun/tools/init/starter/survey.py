"""All that a login node can tell of its cluster, asked side by side."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrun import activity
from hpcrun.host import current_user
from hpcrun.run.fabric import adapters, compute_ports
from hpcrun.run.node import network
from hpcrun.site import shared_storage, slurm_site
from hpcrun.site.shared_storage import StoragePlace
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.slurm import client
from hpcrun.slurm.background import BackgroundCall
from hpcrun.tools.init.starter import python_search, site_software
from hpcrun.tools.init.starter.python_search import FoundPython
from hpcrun.tools.init.starter.site_software import SiteSoftware


@dataclass(frozen=True)
class LoginNetwork:
    """Interfaces and adapters of this machine, in words."""

    interfaces: tuple[str, ...] = ()
    """``eth0 (default route)``, ``ib0 (InfiniBand)``; those with an address that reach others."""
    adapters: tuple[str, ...] = ()
    """``mlx5_0:1 InfiniBand, 400 Gb/sec (4X NDR)``; the ports for training, as nodes pick them."""
    is_late: bool = False
    """Files of the adapters did not answer in time."""


_SIGNS = {"type": "InfiniBand", "roce": "RoCE", "name": "named as a fast one"}


def read_network(sysfs: Path = Path("/sys")) -> LoginNetwork:
    """Read ``/sys`` and ask the kernel for addresses."""
    default = network.default_interface()
    interfaces = []
    for one in network.candidates(sysfs):
        signs = [_SIGNS.get(one.sign, ""), "default route" if one.name == default else ""]
        told = ", ".join(filter(None, signs))
        interfaces.append(f"{one.name} ({told})" if told else one.name)
    reading = adapters.read(sysfs)
    ports = [f"{port.name} {port.layer}, {port.link}" for port in compute_ports.choose(reading)]
    return LoginNetwork(tuple(interfaces), tuple(ports), reading.is_late)


@dataclass(frozen=True)
class Survey:
    """What was found, at one moment."""

    host: str
    user: str
    slurm: SlurmSite | None
    """None where there is no Slurm."""
    storage: list[StoragePlace]
    pythons: list[FoundPython]
    software: SiteSoftware
    network: LoginNetwork
    has_compiler: bool = True
    """There are a C++ compiler and ninja, which DeepSpeed needs for training on CPUs."""

    @property
    def python(self) -> FoundPython | None:
        """Return the Python for training; None where none can."""
        return python_search.choose(self.pythons)


def take(
    directory: Path, environ: Mapping[str, str] = os.environ, *, with_slurm: bool = True
) -> Survey:
    """Ask Slurm, the files and the Pythons; ``directory`` is the project's.

    Raise ClusterUnreachable where there is a Slurm and slurmctld does not answer.
    """
    user = current_user()
    storage = BackgroundCall(lambda: shared_storage.read(environ, user))
    pythons = BackgroundCall(lambda: python_search.search(environ, directory))
    modules = BackgroundCall(lambda: site_software.read(environ, _image_places(environ, directory)))
    networks = BackgroundCall(read_network)
    slurm = slurm_site.read() if with_slurm and client.available() else None
    with activity.doing("looking for storage, modules and adapters"):
        seen = storage.result(), modules.result(), networks.result()
    with activity.doing("asking Pythons for torch and deepspeed"):
        found = pythons.result()
    host = socket.gethostname().partition(".")[0]
    best = python_search.choose(found)
    has_compiler = best is None or _has_compiler(Path(best.executable), environ)
    return Survey(host, user, slurm, seen[0], found, seen[1], seen[2], has_compiler)


def _has_compiler(python: Path, environ: Mapping[str, str]) -> bool:
    """Check for what DeepSpeed's operators are compiled with, beside a Python or in PATH."""
    path = os.pathsep.join([str(python.parent), environ.get("PATH", "")])
    compilers = any(shutil.which(name, path=path) for name in ("c++", "g++", "clang++"))
    return compilers and shutil.which("ninja", path=path) is not None


def _image_places(environ: Mapping[str, str], directory: Path) -> list[Path]:
    """Return where container images usually lie."""
    own = [environ.get(name, "") for name in ("HOME", *shared_storage.VARIABLES)]
    named = [Path(one) for one in own if one.startswith("/")]
    inside = [one / name for one in named for name in ("containers", "images", "sif")]
    return [directory, *named, *inside, Path("/opt/containers")]
