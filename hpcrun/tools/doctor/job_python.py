"""Asks the job's Python what it has, after the profile's setup lines, importing no torch."""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib import metadata
from typing import Any

from hpcrun import host
from hpcrun.errors import UsageError
from hpcrun.state.spec.blocks import early
from hpcrun.submission.local.processes import clean_environment
from hpcrun.submission.python_probe import Unchecked, probe
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.machine_promises import PythonFacts

OWN = ("submitit", "omegaconf")
_PATIENCE = 60.0
_MARK = "hpcrun-tools:"
# As `hpcrun.tools.doctor.on_nodes.node_facts.compiler` looks on a node.
_QUESTION = f"""
import json, os, shutil, sys, sysconfig
path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
found = {{name: shutil.which(program, path=path) for name, program in (
    ("c++", os.environ.get("CXX") or "g++"), ("ninja", "ninja"), ("nvcc", "nvcc"))}}
home = os.environ.get("CUDA_HOME")
if home and not found["nvcc"]:
    found["nvcc"] = shutil.which("nvcc", path=os.path.join(home, "bin"))
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
found["Python.h"] = header if os.path.isfile(header) else None
print("{_MARK}" + json.dumps(found))
"""


def own_libraries() -> dict[str, str | None]:
    """Return the versions of hpcrun's own libraries; None for one that is missing."""
    found: dict[str, str | None] = {}
    for name in OWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def ask(profile: DoctorProfile, python: str | None) -> PythonFacts:
    """Return what the job's Python has; the reason in ``error`` if it cannot be asked."""
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
    tools = _tools(found.executable, setup, variables)
    return PythonFacts(found.executable, found.version, found.libraries, tools)


def _tools(python: str, setup: list[str], variables: dict[str, Any]) -> dict[str, Any] | None:
    argv = [python, "-c", _QUESTION]
    if setup:
        exports = [f"export {name}={shlex.quote(str(one))}" for name, one in variables.items()]
        argv = ["bash", "-lc", "\n".join([*setup, *exports, 'exec "$@"']), "bash", *argv]
    environment = {**clean_environment(), "PATH": os.environ.get("PATH", os.defpath)}
    if not setup:
        environment.update({name: str(one) for name, one in variables.items()})
    process = host.start_piped(argv, cwd="/", env=environment)
    found = host.answer(process, _PATIENCE)
    if found is None:
        return None
    lines = [line for line in found[0].splitlines() if line.startswith(_MARK)]
    return dict(json.loads(lines[-1][len(_MARK) :])) if lines else None
