"""The hpcrun that jobs run, from a zip file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcrun.submission.code import own_package

# Tells of its supervisor's module whether it was compiled here, its file, and a traceback.
LOOK = """
import sys, traceback
compiled = []
sys.addaudithook(lambda event, found: compiled.append(found[1]) if event == "compile" else None)
from hpcrun.run import supervisor
print(any(str(name).endswith("supervisor.py") for name in compiled))
print(supervisor.__file__, supervisor.main.__code__.co_filename)
try:
    supervisor.main()
except BaseException:
    traceback.print_exc(file=sys.stdout)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "hpcrun.zip"
    own_package.write(path)
    return path


def _run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env={"PYTHONPATH": str(package), "PATH": os.environ["PATH"]},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_hpcrun_runs_from_it(package: Path) -> None:
    first = package.read_bytes()
    own_package.write(package)
    assert package.read_bytes() == first
    names = zipfile.ZipFile(package).namelist()
    assert "hpcrun/run/supervisor.py" in names
    # What people type is not compiled for jobs.
    assert not any(name.startswith("hpcrun/cli/") and name.endswith(".pyc") for name in names)
    answer = _run(package, "-m", "hpcrun.run.supervisor", "--help")
    assert answer.returncode == 0, answer.stderr
    assert "--run" in answer.stdout


def test_what_jobs_import_is_compiled_and_shows_its_source(package: Path) -> None:
    compiled, files, *trace = _run(package, "-c", LOOK).stdout.splitlines()
    inside = f"{package}/hpcrun/run/supervisor.py"
    assert (compiled, files) == ("False", f"{inside}c {inside}")
    at = next(number for number, line in enumerate(trace) if inside in line)
    assert "parse_args()" in trace[at + 1]


def test_another_python_compiles_the_source(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", b"\0\0\r\n")
    own_package.write(package)
    compiled, files, *_ = _run(package, "-c", LOOK).stdout.splitlines()
    inside = f"{package}/hpcrun/run/supervisor.py"
    assert (compiled, files) == ("True", f"{inside} {inside}")


def test_what_was_never_compiled_is_compiled_now(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "empty"))
    own_package.write(package)
    assert "hpcrun/run/supervisor.pyc" in zipfile.ZipFile(package).namelist()
    assert _run(package, "-c", LOOK).stdout.splitlines()[0] == "False"


def test_what_runs_on_compute_nodes_needs_only_the_standard_library(package: Path) -> None:
    modules = "hpcrun.submission.local.executor, hpcrun.slurm.client, hpcrun.slurm.steps"
    answer = _run(package, "-c", f"import {modules}")
    assert answer.returncode == 0, answer.stderr
