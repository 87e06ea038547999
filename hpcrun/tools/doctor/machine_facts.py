"""Measures a directory, and asks the job's Python what it has; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from hpcrun import ask_python, mounts
from hpcrun.errors import UsageError
from hpcrun.state.spec.blocks import early
from hpcrun.submission.python_probe import Unchecked, in_job_environment, probe
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.machine_promises import PythonFacts, StorageFacts

# Seconds for each part, so that slow storage does not take minutes.
_SYNC_SECONDS, _SYNCS = 2.0, 16
_WRITE_SECONDS, _WRITE_BYTES, _BLOCK = 3.0, 128 << 20, 4 << 20
_OWN = ("submitit", "omegaconf")
_PATIENCE = 60.0
# As `hpcrun.tools.doctor.on_nodes.node_facts.compiler` looks on a node.
_PROGRAM = ask_python.program("""
import os, shutil, sys, sysconfig
path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
answer = {name: shutil.which(program, path=path) for name, program in (
    ("c++", os.environ.get("CXX") or "g++"), ("ninja", "ninja"), ("nvcc", "nvcc"))}
home = os.environ.get("CUDA_HOME")
if home and not answer["nvcc"]:
    answer["nvcc"] = shutil.which("nvcc", path=os.path.join(home, "bin"))
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
answer["Python.h"] = header if os.path.isfile(header) else None
""")


def measure(root: Path) -> StorageFacts:
    """Measure the storage of a root, which need not exist; never raises OSError."""
    there = next((path for path in (root, *root.parents) if path.is_dir()), root)
    mount = mounts.of(os.path.realpath(there), mounts.read())
    kind, remote = (mount.kind, mount.is_remote) if mount else (None, False)
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryDirectory(prefix=".hpcrun-doctor-", dir=there) as name:
            directory = Path(name)
            renames, sync = _records(directory)
            write = _write(directory, min(_WRITE_BYTES, free // 4))
    except PermissionError:
        return StorageFacts(str(root), kind, remote, error=f"{there} cannot be written by you")
    except OSError as error:
        return StorageFacts(str(root), kind, remote, error=error.strerror or str(error))
    return StorageFacts(str(root), kind, remote, sync, write, free, renames)


def _records(directory: Path) -> tuple[bool, float]:
    """Check that a rename replaces and mkdir refuses; also return the seconds of a record."""
    took, right = [], True
    until = time.monotonic() + _SYNC_SECONDS
    new, place = directory / "new", directory / "record"
    for number in range(_SYNCS):
        began = time.perf_counter()
        with open(new, "wb") as stream:
            stream.write(b"%04d" % number * 1024)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, place)
        took.append(time.perf_counter() - began)
        right = right and place.read_bytes()[:4] == b"%04d" % number and not new.exists()
        if time.monotonic() > until:
            break
    claim = directory / "claim"
    claim.mkdir()
    with contextlib.suppress(FileExistsError):
        claim.mkdir()
        right = False
    return right, statistics.median(took)


def _write(directory: Path, most: int) -> float | None:
    """Return the bytes per second of one file, its fsync included."""
    block, written, began = os.urandom(_BLOCK), 0, time.perf_counter()
    with open(directory / "file", "wb") as stream:
        while written < most and time.perf_counter() - began < _WRITE_SECONDS:
            written += stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
    return written / (time.perf_counter() - began) if written else None


def own_libraries() -> dict[str, str | None]:
    """Return the versions of hpcrun's own libraries; None for one that is missing."""
    found: dict[str, str | None] = {}
    for name in _OWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def ask_job_python(profile: DoctorProfile, python: str | None) -> PythonFacts:
    """Ask the job's Python for its libraries and tools; ``error`` says why it cannot be asked."""
    setup, variables = profile.data["setup"], early(profile.data["variables"])
    wanted = python or sys.executable
    if profile.foreign and setup:
        return PythonFacts(unchecked=f"{profile.foreign}, and its setup lines are not run here")
    try:
        found = probe(wanted, setup=setup, variables=variables)
    except Unchecked as error:
        return PythonFacts(unchecked=str(error))
    except UsageError as error:
        return PythonFacts(error=error.message.removeprefix("environment.python: "))
    argv, environment = in_job_environment([found.executable, *_PROGRAM], setup, variables)
    tools = ask_python.ask(argv, timeout=_PATIENCE, environment=environment).data
    return PythonFacts(found.executable, found.version, found.libraries, tools)
