"""Asks the job's Python what it has, after the profile's setup lines, importing no torch."""

from __future__ import annotations

import sys
from importlib import metadata

from hpcrun import ask_python
from hpcrun.errors import UsageError
from hpcrun.state.spec.blocks import early
from hpcrun.submission.python_probe import Unchecked, in_job_environment, probe
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.machine_promises import PythonFacts

OWN = ("submitit", "omegaconf")
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
    argv, environment = in_job_environment([found.executable, *_PROGRAM], setup, variables)
    tools = ask_python.ask(argv, timeout=_PATIENCE, environment=environment).data
    return PythonFacts(found.executable, found.version, found.libraries, tools)
