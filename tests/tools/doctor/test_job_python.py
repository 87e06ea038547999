"""Asking a real Python, after setup lines, and one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hpcrun.compile.spec import schema
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.tools.doctor import job_python
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.on_nodes import node_facts


def _profile(**changed: Any) -> DoctorProfile:
    foreign = changed.pop("foreign", None)
    data = {**schema.defaults(Profile), "name": "bed", **changed}
    return DoctorProfile(data, Path("/nowhere"), foreign=foreign)


def test_this_python_has_what_a_node_would_find() -> None:
    facts = job_python.ask(_profile(), None)
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
    facts = job_python.ask(_profile(setup=[f"export PATH={tmp_path}:$PATH"]), sys.executable)
    assert facts.tools is not None
    assert facts.tools["c++"] == str(compiler)
    facts = job_python.ask(_profile(variables={"CXX": str(compiler)}), sys.executable)
    assert facts.tools is not None
    assert facts.tools["c++"] == str(compiler)


def test_a_python_that_is_not_there() -> None:
    facts = job_python.ask(_profile(), "/nowhere/python")
    assert facts.error is not None
    assert "/nowhere/python" in facts.error


def test_setup_lines_of_somebody_else_are_not_run(tmp_path: Path) -> None:
    profile = _profile(setup=[f"touch {tmp_path}/ran"], foreign="/x/bed.yaml belongs to bob")
    facts = job_python.ask(profile, None)
    assert facts.unchecked is not None
    assert "belongs to bob" in facts.unchecked
    assert [*tmp_path.iterdir()] == []


def test_own_libraries() -> None:
    found = job_python.own_libraries()
    assert found["submitit"]
    assert found["omegaconf"]
