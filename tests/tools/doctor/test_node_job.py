"""The job's directory, script and end; that it runs: tests/cluster/test_doctor.py."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.spec import schema
from hpcrun.errors import ClusterRefused, HpcrunError, Interrupted
from hpcrun.slurm import client, queue
from hpcrun.slurm.queue import JobState, JobStates
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.submission import sbatch
from hpcrun.tools.doctor import node_job
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.node_choice import NodeChoice
from hpcrun.tools.doctor.node_job import NodeJobRequest, NodeTest

CHOICE = NodeChoice("gpu", 2, ("n1", "n2"), 8)


def _profile(root: Path, **changed: Any) -> DoctorProfile:
    data = {**schema.defaults(Profile), "name": "bed", **changed}
    return DoctorProfile(data, root)


class _Slurm:
    """Slurm as the job sees it: what it says of the job, and what it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = ["PENDING", "RUNNING"]
        self.cancelled: list[str] = []
        self.script = ""
        self.running: Callable[[Path], None] = lambda directory: None
        self.directory = Path()
        monkeypatch.setattr(sbatch, "submit", self._submit)
        monkeypatch.setattr(queue, "query", self._query)
        monkeypatch.setattr(client, "cancel", self._cancel)
        monkeypatch.setattr(node_job, "_LOOK", 0.01)
        monkeypatch.setattr(node_job, "_LATE", 0.2)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def _submit(self, script: Path) -> str:
        self.script, self.directory = script.read_text(), script.parent
        return "7"

    def _query(self, jobs: list[str]) -> JobStates:
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        if state == "RUNNING":
            self.running(self.directory)
        return JobStates({"7": JobState("7", state, reason="Priority", nodes="n[1-2]")})

    def _cancel(self, jobs: list[str]) -> None:
        self.cancelled += jobs
        self.states = ["CANCELLED"]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> _Slurm:
    return _Slurm(monkeypatch)


def _run(root: Path, **changed: Any) -> dict[str, Any]:
    rate = changed.pop("baseline_rate", None)
    test = NodeTest("node[1-2]", **{"python": "/venv/bin/python", **changed})
    request = NodeJobRequest(CHOICE, test, rate)
    return node_job.run(_profile(root), request, lambda message: None)


def test_a_result_and_nothing_left(tmp_path: Path, slurm: _Slurm) -> None:
    seen: dict[str, Any] = {}

    def works(directory: Path) -> None:
        seen["mode"] = stat.S_IMODE(directory.stat().st_mode)
        seen["request"] = json.loads((directory / "request.json").read_text())
        seen["files"] = sorted(path.name for path in directory.iterdir())
        (directory / "result.json").write_text('{"nodes": {}}')
        slurm.states = ["COMPLETED"]

    slurm.running = works
    root = tmp_path / "runs"
    assert _run(root, baseline_rate=1e9) == {"nodes": {}, "job": "7"}
    assert not root.exists(), "it was made for the job alone"
    assert seen["mode"] == 0o700
    assert seen["files"] == ["doctor.sbatch", "package.zip", "request.json"]
    assert seen["request"]["gpus"] == "gpus-per-node=8"
    assert seen["request"]["baseline_rate"] == 1e9
    assert slurm.cancelled == []


def test_the_script(tmp_path: Path, slurm: _Slurm) -> None:
    slurm.states = ["FAILED"]
    profile = _profile(
        tmp_path,
        setup=["module load cuda"],
        variables={"A": "b c"},
        sbatch={"licenses": "fs:1"},
    )
    profile.data["resources"].update({"account": "lab", "exclude": "n9", "constraint": "a100"})
    test = NodeTest("node[1-2]", python="/venv/bin/python", minutes=5)
    request = NodeJobRequest(CHOICE, test)
    with pytest.raises(HpcrunError):
        node_job.run(profile, request, lambda message: None)
    lines = slurm.script.splitlines()
    options = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert {
        *("--nodes=2", "--nodelist=n1,n2", "--exclusive", "--mem=0", "--gpus-per-node=8"),
        *("--time=5", "--partition=gpu", "--account=lab", "--licenses=fs:1", "--export=NIL"),
        *("--no-requeue", "--no-kill", "--job-name=hpcrun-doctor"),
    } <= options
    for way, option in (("gres", "--gres=gpu:8"), ("none", "--exclusive")):
        profile.data["resources"]["gpu_request"] = way
        with pytest.raises(HpcrunError):
            node_job.run(profile, request, lambda message: None)
        assert f"#SBATCH {option}\n" in slurm.script
        assert "--gpus-per-node" not in slurm.script
    # Nodes that were named are tested.
    assert not any("--exclude=" in line or "--constraint" in line for line in lines)
    assert "module load cuda" in lines
    assert "export A='b c'" in lines
    start = "exec /venv/bin/python -m hpcrun.tools.doctor.on_nodes.conductor "
    assert lines[-1].startswith(start + str(tmp_path))


def test_a_job_that_ends_without_a_result(tmp_path: Path, slurm: _Slurm) -> None:
    def fails(directory: Path) -> None:
        (directory / "job.log").write_text("a\nModuleNotFoundError: no hpcrun\n")
        slurm.states = ["FAILED"]

    slurm.running = fails
    with pytest.raises(HpcrunError, match=r"ended as FAILED.*\n.*a\n.*ModuleNotFoundError"):
        _run(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_root_that_nodes_do_not_see(tmp_path: Path, slurm: _Slurm) -> None:
    slurm.states = ["FAILED"]
    with pytest.raises(HpcrunError) as told:
        _run(tmp_path)
    assert "choose a root on shared storage" in (told.value.hint or "")


def test_a_job_that_waits_for_too_long(tmp_path: Path, slurm: _Slurm) -> None:
    slurm.states = ["PENDING"]
    with pytest.raises(ClusterRefused, match=r"has waited for 0 s \(Priority\), and was cancelled"):
        _run(tmp_path, wait=0.05)
    assert slurm.cancelled == ["7"]
    assert [*tmp_path.iterdir()] == []


def test_a_first_node_that_dies(
    tmp_path: Path, slurm: _Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --no-kill the job would stay until its time limit."""
    monkeypatch.setattr(node_job, "_SILENT", 0.2)
    slurm.states = ["RUNNING"]
    with pytest.raises(HpcrunError, match="on n\\[1-2\\] has said nothing for 0 s while starting"):
        _run(tmp_path)
    assert slurm.cancelled == ["7"]
    assert [*tmp_path.iterdir()] == []


def test_nodes_that_boot_are_waited_for(
    tmp_path: Path, slurm: _Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a job that runs may be silent, and no longer than `wait`."""
    monkeypatch.setattr(node_job, "_SILENT", 0.05)
    slurm.states = ["CONFIGURING"]
    with pytest.raises(ClusterRefused, match=r"for 0 s \(its nodes boot\), and was cancelled"):
        _run(tmp_path, wait=0.4)
    assert slurm.cancelled == ["7"]


def test_ctrl_c_cancels_the_job(tmp_path: Path, slurm: _Slurm) -> None:
    def interrupted(directory: Path) -> None:
        raise KeyboardInterrupt

    slurm.running = interrupted
    with pytest.raises(Interrupted, match="interrupted: job 7 was cancelled"):
        _run(tmp_path)
    assert slurm.cancelled == ["7"]
    assert [*tmp_path.iterdir()] == []


def test_ctrl_c_while_the_job_is_submitted(
    tmp_path: Path, slurm: _Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is not known yet, and Slurm knows the job by its script."""

    def cut_off(script: Path) -> str:
        monkeypatch.setattr(client, "jobs_by_script", lambda: {str(script): ["8"]})
        raise KeyboardInterrupt

    monkeypatch.setattr(sbatch, "submit", cut_off)
    with pytest.raises(Interrupted, match="job 8 was cancelled"):
        _run(tmp_path)
    assert slurm.cancelled == ["8"]


def test_what_a_killed_doctor_has_left(tmp_path: Path, slurm: _Slurm) -> None:
    slurm.states = ["FAILED"]
    old, new = (tmp_path / f".hpcrun-doctor-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.mkdir()
    (tmp_path / "experiment").mkdir()
    os.utime(old, (0, 0))
    with pytest.raises(HpcrunError):
        _run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "experiment"]


def test_a_root_that_cannot_be_written(tmp_path: Path, slurm: _Slurm) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterRefused, match="cannot be written: Not a directory"):
        _run(tmp_path / "file" / "runs")
