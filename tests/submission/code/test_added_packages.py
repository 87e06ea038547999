"""The packages beside hpcrun that a plan names, in the zip file of its jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.extensions import TRACKERS
from hpcrun.state.plan import Plan
from hpcrun.submission.code import added_packages, own_package
from tests.support import added_package, plans

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
    found = added_packages.files(plan(tmp_path, tensorboard=True, aim={}))
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
    assert added_packages.files(plan(tmp_path, tensorboard=True, aim=None)) == {}


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
        added_packages.files(plan(tmp_path, aim={}))


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
        added_packages.files(plan(tmp_path, aim={}))


def test_a_record_without_the_module(place: Path, tmp_path: Path) -> None:
    install(place)
    record = place / "hpcrun_aim-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("hpcrun_aim.py,,\n", ""))
    with pytest.raises(UsageError, match="its files lack the module hpcrun_aim"):
        added_packages.files(plan(tmp_path, aim={}))
