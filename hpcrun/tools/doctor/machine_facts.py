"""Measures a directory, and asks the job's Python what it has; nothing is left behind."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from hpcrun import ask_python, mounts
from hpcrun.errors import UsageError
from hpcrun.state.spec.blocks import early
from hpcrun.submission.python_probe import Unchecked, in_job_environment, probe
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.machine_promises import PythonFacts, StorageFacts
from hpcrun.tools.doctor.on_nodes import node_facts

# Seconds, so that slow storage does not take minutes, and bytes.
_WRITE_SECONDS, _WRITE_BYTES, _BLOCK = 3.0, 128 << 20, 4 << 20
_OWN = ("submitit", "omegaconf")
_PATIENCE = 60.0
_PROGRAM = ask_python.program(f"""
from __future__ import annotations
import os, shutil, sys, sysconfig
from pathlib import Path
{inspect.getsource(node_facts.compiler)}
answer = compiler()
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
            renames = _renames(directory)
            sync = node_facts.sync_seconds(directory, "sync")
            write = _write(directory, min(_WRITE_BYTES, free // 4))
    except PermissionError:
        return StorageFacts(str(root), kind, remote, error=f"{there} cannot be written by you")
    except OSError as error:
        return StorageFacts(str(root), kind, remote, error=error.strerror or str(error))
    return StorageFacts(str(root), kind, remote, sync, write, free, renames)


def _renames(directory: Path) -> bool:
    """Check that a rename replaces a file, and that mkdir refuses a name that is there."""
    new, place, claim = directory / "new", directory / "record", directory / "claim"
    right = True
    for content in (b"first", b"second"):
        new.write_bytes(content)
        os.replace(new, place)
        right = right and place.read_bytes() == content and not new.exists()
    claim.mkdir()
    with contextlib.suppress(FileExistsError):
        claim.mkdir()
        right = False
    return right


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
    return {name: node_facts.version_of(name) for name in _OWN}


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
