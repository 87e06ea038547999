"""The hpcrun that jobs run, from a zip file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.extensions import TRACKERS
from hpcrun.state.plan import Plan
from hpcrun.submission.code import own_package
from tests.support import added_package, plans

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


MODULE = (
    "class AimTracker:\n    def send(self, lines, kept): ...\n    def close(self, ended): ...\n"
)
# In a process that has no path but the zip.
LOAD = """
from hpcrun.extensions import TRACKERS
print(TRACKERS.load("aim").__module__, TRACKERS.package("aim"))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    site.mkdir()
    yield from added_package.on_path(site, monkeypatch)


def install(place: Path, **more: Any) -> None:
    entry = "aim = hpcrun_aim:AimTracker"
    added_package.install(place, "hpcrun_aim", TRACKERS.group, entry, MODULE, **more)


def plan(directory: Path, **tracking: Any) -> Plan:
    return plans.command_plan(directory, {0: ["true"]}, tracking=tracking)


def test_a_job_finds_the_entry_in_the_zip(place: Path, tmp_path: Path) -> None:
    install(place, more={"hpcrun_aim_data/words.txt": b"word", "../../bin/aim": b"#!"})
    other = "idle = idle_tracker:Idle"
    added_package.install(place, "idle_tracker", TRACKERS.group, other)
    found = own_package.added_files(plan(tmp_path, tensorboard=True, aim={}))
    metadata = ("METADATA", "entry_points.txt", "direct_url.json", "RECORD")
    assert sorted(found) == sorted(
        [
            *(f"hpcrun_aim-1.0.dist-info/{name}" for name in metadata),
            "hpcrun_aim.py",
            "hpcrun_aim_data/words.txt",
        ]
    )
    package = tmp_path / "hpcrun.zip"
    own_package.write(package, found)
    answer = subprocess.run(
        [sys.executable, "-S", "-c", LOAD],
        env={"PYTHONPATH": str(package), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.split() == ["hpcrun_aim", "hpcrun_aim"], answer.stderr


def test_hpcruns_own_entries_need_no_package(place: Path, tmp_path: Path) -> None:
    install(place)
    assert own_package.added_files(plan(tmp_path, tensorboard=True, aim=None)) == {}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"editable": True}, "it is installed as editable.*without -e"),
        ({"more": {"hpcrun_aim_fast.so": b""}}, "compiled file hpcrun_aim_fast.so"),
        ({"more": {"hpcrun/aim.py": b""}}, "it has hpcrun/aim.py, which changes how"),
        ({"more": {"aim.pth": b""}}, "it has aim.pth, which changes how"),
    ],
)
def test_what_cannot_be_zipped_is_refused(
    place: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    install(place, **more)
    with pytest.raises(UsageError, match=f"(?s)tracking.aim is of the package hpcrun_aim.*{said}"):
        own_package.added_files(plan(tmp_path, aim={}))


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("hpcrun_aim-1.0.dist-info/RECORD", "no RECORD lists its files"),
        ("hpcrun_aim.py", r"its file(s lack the module)? hpcrun_aim"),
    ],
)
def test_an_installation_that_is_not_whole(
    place: Path, tmp_path: Path, gone: str, said: str
) -> None:
    install(place)
    (place / gone).unlink()
    with pytest.raises(UsageError, match=f"(?s){said}.*--force-reinstall hpcrun_aim"):
        own_package.added_files(plan(tmp_path, aim={}))


def test_a_record_without_the_module(place: Path, tmp_path: Path) -> None:
    install(place)
    record = place / "hpcrun_aim-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("hpcrun_aim.py,,\n", ""))
    with pytest.raises(UsageError, match="its files lack the module hpcrun_aim"):
        own_package.added_files(plan(tmp_path, aim={}))


def test_caches_are_not_looked_into(tmp_path: Path) -> None:
    """Another process may remove them meanwhile."""
    for name in ("one.py", "sub/two.py", "sub/__pycache__/three.py", "_data/jobs/four.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert own_package._python_files(tmp_path) == [tmp_path / "one.py", tmp_path / "sub/two.py"]
