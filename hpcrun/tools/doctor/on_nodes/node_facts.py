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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcrun import host
from hpcrun.run.fabric import adapters, compute_ports, link_check
from hpcrun.run.node import network

_LIBRARIES = ("torch", "deepspeed")
_MODEL = re.compile(r"^(?:model name|cpu|CPU part)[ \t]*:(.+)$", re.MULTILINE)
_SYNCS, _SYNC_SECONDS = 8, 3.0
# Seconds for an answer: a driver that hangs is a finding.
PATIENCE = 20.0
# Name here -> nvidia-smi's; all are known to drivers from 450 on.
_FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "memory": "memory.total",
    "memory_used": "memory.used",
    "utilization": "utilization.gpu",
    "ecc": "ecc.mode.current",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
    "retired_pending": "retired_pages.pending",
    "clock": "clocks.sm",
    "clock_most": "clocks.max.sm",
    "pcie_width": "pcie.link.width.current",
    "pcie_width_most": "pcie.link.width.max",
    "temperature": "temperature.gpu",
}
_TEXTS = ("name", "uuid", "driver", "ecc", "retired_pending")
# Drivers from 535 on call them events; what slows a board down although it is asked to compute.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_SLOWDOWNS = {0x08: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
_MOST = 64
Ask = Callable[[Sequence[str]], str]
_FORM = ("--format=csv,noheader,nounits",)


def read(fabric: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of this node; ``fabric`` is the profile's block."""
    reading = adapters.read()
    return {
        "host": socket.gethostname(),
        "python": sys.executable,
        "libraries": {name: version for name in _LIBRARIES if (version := version_of(name))},
        "compiler": compiler(),
        "processor": processor(),
        "interfaces": [[one.name, one.address, one.sign] for one in network.candidates()],
        "fabric": link_check.report(fabric, reading),
        "hca": compute_ports.hca_filter(fabric, reading),
        **gpus(),
    }


def gpus() -> dict[str, Any]:
    """Return ``gpus`` (None without a driver), ``gpus_given`` and ``gpu_trouble``."""
    found: dict[str, Any] = {"gpus": None, "gpus_given": given_gpus()}
    if has_driver():
        try:
            found["gpus"] = read_gpus()
        except GpuTrouble as error:
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


def version_of(name: str) -> str | None:
    """Return the version of a library of this Python; None if it has not got it."""
    from importlib import metadata, util

    try:
        if util.find_spec(name) is None:
            return None
        return metadata.version(name)
    except (ImportError, ValueError):
        return None


class GpuTrouble(Exception):
    """nvidia-smi is there and gives no answer; carries its words."""


def has_driver() -> bool:
    """Check for a driver of NVIDIA's or its program on this node."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").is_dir()


def given_gpus() -> int | None:
    """Return how many GPUs Slurm gave this step, by its variables; None where it does not say.

    Parts of boards (MIG) are not counted: nvidia-smi lists boards.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        words = [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]
        if any(word.startswith("MIG-") for word in words):
            return None
        # What Slurm says where it gave none.
        if words and words != ["NoDevFiles"]:
            return len(words)
    return None


def read_gpus(ask: Ask | None = None) -> list[dict[str, Any]]:
    """Return the fields of each GPU that this step may see, unknown ones left out.

    Raises GpuTrouble where nvidia-smi fails, hangs or prints something else.
    """
    asked = _ask if ask is None else ask
    text = asked(["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", *_FORM])
    found = [_gpu(line) for line in text.splitlines()[:_MOST] if line.strip()]
    if not all(found):
        raise GpuTrouble(" ".join(text.split())[:300])
    slowdowns = _slowdowns(asked)
    if len(slowdowns) == len(found):
        for gpu, words in zip(found, slowdowns, strict=True):
            gpu.update({"slowdown": words} if words else {})
    return found


def _ask(argv: Sequence[str]) -> str:
    try:
        process = host.start_piped(argv)
    except OSError as error:
        raise GpuTrouble(f"nvidia-smi: {error.strerror}") from None
    found = host.answer(process, PATIENCE)
    if found is None:
        raise GpuTrouble(f"nvidia-smi gave no answer within {PATIENCE:g} s")
    if process.returncode:
        said = " ".join("".join(found).split())[:300]
        raise GpuTrouble(f"nvidia-smi ended with exit code {process.returncode}: {said}")
    return found[0]


def _gpu(line: str) -> dict[str, Any]:
    """Return the fields of a line; empty for a line that is none."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_FIELDS):
        return {}
    found: dict[str, Any] = {}
    for name, cell in zip(_FIELDS, cells, strict=True):
        # ``[N/A]``, ``[Not Supported]``, ``[Unknown Error]``, ``[GPU requires reset]``
        if cell.startswith("["):
            if "Unknown Error" in cell or "reset" in cell or "is lost" in cell:
                found["trouble"] = cell.strip("[]")
        elif name in _TEXTS:
            found[name] = "".join(filter(str.isprintable, cell))[:80]
        elif re.fullmatch(r"\d{1,12}", cell):
            found[name] = int(cell)
    return found


def _slowdowns(ask: Ask) -> list[str]:
    for field in _REASONS:
        with contextlib.suppress(GpuTrouble):
            lines = [
                line.strip()
                for line in ask(["nvidia-smi", f"--query-gpu={field}", *_FORM]).splitlines()
                if line.strip()
            ]
            if all(re.fullmatch(r"0x[0-9a-fA-F]{1,16}|\[.*\]", line) for line in lines):
                return [_words(line) for line in lines]
    return []


def _words(line: str) -> str:
    bits = int(line, 16) if line.startswith("0x") else 0
    return ", ".join(words for bit, words in _SLOWDOWNS.items() if bits & bit)
