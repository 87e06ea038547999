"""Measuring a directory: numbers, and nothing left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.spec import schema
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.tools.doctor import machine_facts
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.on_nodes import node_facts


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "_WRITE_BYTES", 8 << 20)


def test_a_directory_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    facts = machine_facts.measure(tmp_path)
    assert facts.error is None
    assert facts.renames
    assert facts.sync is not None
    assert 0 < facts.sync < 5
    assert facts.write is not None
    assert facts.write > 0
    assert facts.kind
    assert [*tmp_path.iterdir()] == []


def test_a_root_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = machine_facts.measure(tmp_path / "runs" / "ann")
    assert facts.path == str(tmp_path / "runs" / "ann")
    assert facts.sync is not None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else() -> None:
    assert machine_facts.measure(Path("/etc")).error == "/etc cannot be written by you"


def test_storage_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    facts = machine_facts.measure(tmp_path)
    assert facts.error == "No space left on device"
    assert facts.sync is None
    assert [*tmp_path.iterdir()] == []


def test_renames_that_do_not_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = os.replace, iter(range(1000))

    def lazy(new: Path, place: Path) -> None:
        if next(count) == 0:
            real(new, place)
        else:
            Path(new).unlink()

    monkeypatch.setattr(os, "replace", lazy)
    assert not machine_facts.measure(tmp_path).renames


def _profile(**changed: Any) -> DoctorProfile:
    foreign = changed.pop("foreign", None)
    data = {**schema.defaults(Profile), "name": "bed", **changed}
    return DoctorProfile(data, Path("/nowhere"), foreign=foreign)


def test_this_python_has_what_a_node_would_find() -> None:
    facts = machine_facts.ask_job_python(_profile(), None)
    assert facts.error is None
    assert facts.executable == sys.executable
    assert facts.libraries is not None
    assert facts.libraries["torch"]
    assert facts.tools is not None
    assert facts.tools.keys() == node_facts.compiler().keys()
    assert facts.tools["Python.h"] == node_facts.compiler()["Python.h"]


def test_setup_lines_count(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    facts = machine_facts.ask_job_python(
        _profile(setup=[f"export PATH={tmp_path}:$PATH"]), sys.executable
    )
    assert facts.tools is not None
    assert facts.tools["c++"] == str(compiler)
    facts = machine_facts.ask_job_python(_profile(variables={"CXX": str(compiler)}), sys.executable)
    assert facts.tools is not None
    assert facts.tools["c++"] == str(compiler)


def test_a_python_that_is_not_there() -> None:
    facts = machine_facts.ask_job_python(_profile(), "/nowhere/python")
    assert facts.error is not None
    assert "/nowhere/python" in facts.error


def test_setup_lines_of_somebody_else_are_not_run(tmp_path: Path) -> None:
    profile = _profile(setup=[f"touch {tmp_path}/ran"], foreign="/x/bed.yaml belongs to bob")
    facts = machine_facts.ask_job_python(profile, None)
    assert facts.unchecked is not None
    assert "belongs to bob" in facts.unchecked
    assert [*tmp_path.iterdir()] == []


def test_own_libraries() -> None:
    found = machine_facts.own_libraries()
    assert found["submitit"]
    assert found["omegaconf"]
