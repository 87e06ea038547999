"""What one node tells of itself: its GPUs, links, compiler, libraries and storage."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import statistics
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from hpcrun.run.fabric import adapters, compute_ports, link_check
from hpcrun.run.node import network
from hpcrun.tools.doctor.on_nodes import gpu_query

_LIBRARIES = ("torch", "deepspeed")
_MODEL = re.compile(r"^(?:model name|cpu|CPU part)[ \t]*:(.+)$", re.MULTILINE)
_SYNCS, _SYNC_SECONDS = 8, 3.0


def read(fabric: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of this node; ``fabric`` is the profile's block."""
    reading = adapters.read()
    return {
        "host": socket.gethostname(),
        "python": sys.executable,
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        "compiler": compiler(),
        "processor": processor(),
        "interfaces": [[one.name, one.address, one.sign] for one in network.candidates()],
        "fabric": link_check.report(fabric, reading),
        "hca": compute_ports.hca_filter(fabric, reading),
        **gpus(),
    }


def gpus() -> dict[str, Any]:
    """Return ``gpus`` (None without a driver), ``gpus_given`` and ``gpu_trouble``."""
    found: dict[str, Any] = {"gpus": None, "gpus_given": gpu_query.given()}
    if gpu_query.is_there():
        try:
            found["gpus"] = gpu_query.read()
        except gpu_query.GpuTrouble as error:
            found["gpu_trouble"] = str(error)
    return found


def processor(information: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model as Linux names it; empty where it does not."""
    with contextlib.suppress(OSError):
        # x86, POWER and ARM have different names for it.
        if found := _MODEL.search(information.read_text(errors="replace")):
            return "".join(filter(str.isprintable, found[1])).strip()[:80]
    return ""


def compiler() -> dict[str, str | None]:
    """Return where the programs are that DeepSpeed's operators are built with; None without."""
    # A rank's PATH begins with its Python's own directory, as there ninja is.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = {
        "c++": shutil.which(os.environ.get("CXX") or "g++", path=path),
        "ninja": shutil.which("ninja", path=path),
        "nvcc": shutil.which("nvcc", path=path),
    }
    if found["nvcc"] is None and (home := os.environ.get("CUDA_HOME")):
        found["nvcc"] = shutil.which("nvcc", path=str(Path(home) / "bin"))
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return {**found, "Python.h": str(header) if header.is_file() else None}


def sync_seconds(directory: Path, name: str) -> float:
    """Return the median seconds of writing 4 kB in a directory with fsync and rename.

    Raises OSError if it cannot be written.
    """
    took, until = [], time.monotonic() + _SYNC_SECONDS
    path, place = directory / f".{name}", directory / name
    try:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            with open(path, "wb") as stream:
                stream.write(bytes(4096))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(path, place)
            took.append(time.perf_counter() - began)
            if time.monotonic() > until:
                break
    finally:
        for one in (path, place):
            with contextlib.suppress(OSError):
                one.unlink()
    return statistics.median(took)


def wait_for(path: Path, text: str, patience: float) -> float | None:
    """Return the seconds until a file has a text; None if it has not in time."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError, ValueError):
            # A new look at the directory makes NFS ask its server.
            os.listdir(path.parent)  # noqa: PTH208
            if path.read_text(errors="replace")[:1000] == text:
                return time.monotonic() - began
        if time.monotonic() - began > patience:
            return None
        time.sleep(0.05)


def _version(name: str) -> str | None:
    from importlib import metadata, util

    try:
        if util.find_spec(name) is None:
            return None
        return metadata.version(name)
    except (ImportError, ValueError):
        return None
