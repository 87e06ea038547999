"""Who leads a job whose batch host is lost, and how it ends. Slurm's part is a stand-in here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.run.job import new_supervisor
from hpcrun.slurm import client, job
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths

STARTED: dict[str, Any] = {"job_id": "7", "restart_count": 0, "submission": 1}


def _run(**changes: Any) -> Any:
    entry = SimpleNamespace(framework=None, kind="script")
    recovery = SimpleNamespace(in_place=3, shrink=False)
    found = {"entry": entry, "recovery": recovery, "outlives_nodes": True, "role_plans": ()}
    return SimpleNamespace(**{**found, "spec": {}, "nodes": 2, "number": 0, **changes})


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "0")
    _start(found, 1, "n1", ["n1", "n2"], ["n3"])
    return found


def _start(
    paths: RunPaths, attempt: int, host: str, nodes: list[str], spares: list[str], **more: Any
) -> None:
    paths.attempt(attempt).directory.mkdir(parents=True)
    own = {"host": host, "pid": 1, "nodes": nodes, "spare_nodes": spares}
    ledger.write(paths, ledger.STARTED, attempt, **STARTED, **own, **more)


@pytest.mark.parametrize(
    ("changes", "can"),
    [
        ({}, True),
        ({"nodes": 3}, False),
        ({"outlives_nodes": False}, False),
        ({"role_plans": ("a role",)}, False),
        ({"spec": {"batch_script": "around.sh"}}, False),
        ({"entry": SimpleNamespace(framework="batch", kind="command")}, False),
        ({"recovery": SimpleNamespace(in_place=0, shrink=False)}, False),
    ],
)
def test_which_runs_may_go_on(paths: RunPaths, changes: dict[str, Any], can: bool) -> None:
    assert new_supervisor.can_lead(_run(**changes), paths, 1, "n1") == can


def test_not_where_the_supervisor_had_decided_for_a_requeue(paths: RunPaths) -> None:
    ledger.write(paths, ledger.DECIDED, 1, action="requeue")
    assert not new_supervisor.can_lead(_run(), paths, 1, "n1")


def test_nodes_that_were_lost_before_are_not_used_again(paths: RunPaths) -> None:
    _start(paths, 2, "n1", ["n1", "n3"], [])
    assert new_supervisor.nodes_left(ledger.read(paths), "n1") == ["n3"]


def test_one_node_leads(paths: RunPaths) -> None:
    """However far the agents had heard of the attempts; the next leader is another matter."""
    _start(paths, 2, "n1", ["n1", "n2"], [])
    assert new_supervisor.claim(paths, 2)
    assert not new_supervisor.claim(paths, 1)
    _start(paths, 3, "n2", ["n2", "n3"], [], instead_of="n1")
    assert new_supervisor.has_begun(paths, 1, "n1")
    assert new_supervisor.claim(paths, 3)


def test_a_leader_that_does_not_begin(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_supervisor, "_BEGINS", 0.05)
    monkeypatch.setattr(new_supervisor, "_LOOK_EVERY", 0.01)
    assert not new_supervisor.has_begun(paths, 1, "n1")
    # One of an earlier start is no sign.
    _start(paths, 2, "n2", ["n2", "n3"], [], instead_of="n1")
    assert not new_supervisor.has_begun(paths, 2, "n1")


def test_its_variables_are_the_jobs() -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_RESTART_COUNT": "0"}
    step = {"SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_NODELIST": "n2", "SLURM_PROCID": "0"}
    kept = {**given, "PATH": "/bin", "SLURMD_NODENAME": "n2", "SLURM_ARRAY_TASK_ID": "3"}
    own = {"HPCRUN_START": "0123456789ab"}
    former = {"HPCRUN_FORMER_START": "0123456789ab"}
    assert new_supervisor._variables({**kept, **step, **own}) == {**kept, **own, **former}


@pytest.mark.parametrize(
    ("intent", "requeues", "done"),
    [
        (ledger.FINISHED, True, ["requeue"]),
        (ledger.FINISHED, False, ["requeue", "cancel"]),
        (None, True, ["cancel"]),
    ],
)
def test_how_the_job_ends(
    paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    intent: str | None,
    requeues: bool,
    done: list[str],
) -> None:
    if intent is not None:
        ledger.set_intent(paths, intent)
    calls: list[str] = []
    monkeypatch.setattr(job, "requeue", lambda *_, **__: calls.append("requeue") or requeues)
    monkeypatch.setattr(client, "cancel", lambda _: calls.append("cancel"))
    submission: Any = SimpleNamespace(
        experiment=SimpleNamespace(run=lambda _: paths), directory=Path("/study/submissions/1")
    )
    new_supervisor._end_job(submission, _run(), "7", "n1")
    assert calls == done
