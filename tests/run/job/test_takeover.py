"""When an agent that lost its supervisor lets the job be. Slurm's part is a stand-in here."""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.policy.causes import JobFacts
from hpcrun.run.job import new_supervisor
from hpcrun.run.job.takeover import _PATIENCE, Takeover
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.switchboard import Switchboard
from hpcrun.slurm import job, suspect_exclusion
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.spec.experiment import Recovery, Resources
from hpcrun.state.suspect_nodes import SuspectChoice, SuspectNode

SECRET = JobSecret.new()
START: dict[str, Any] = {"job_id": "7_3", "restart_count": 1}


@pytest.fixture(autouse=True)
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = JobFacts(state="RUNNING", restarts=1)
    monkeypatch.setattr(job, "facts", lambda *_, **__: facts)


@pytest.fixture
def switchboard() -> Iterator[Switchboard]:
    """A supervisor's, which answers nobody unless it is polled."""
    found = Switchboard("127.0.0.1", SECRET, ["n2"])
    yield found
    found.close()


def _orphan(directory: Path, supervisor: str | None = None) -> Takeover:
    paths = RunPaths(directory)
    submission: Any = SimpleNamespace(
        experiment=SimpleNamespace(run=lambda number: paths, root=directory.parent),
        directory=Path("/study/submissions/1"),
    )
    arguments = argparse.Namespace(
        job_id="7_3", restarts=1, attempt=2, node="n2", node_rank=1, supervisor=supervisor
    )
    arguments.batch_node = "n1"
    run: Any = SimpleNamespace(number=3, recovery=Recovery(), resources=Resources(), shared_nodes=2)
    directory.mkdir(exist_ok=True)
    ledger.write(paths, ledger.STARTED, 2, **START)
    return Takeover(arguments, submission, run, {}, SECRET)


def test_a_job_that_nobody_leads(tmp_path: Path) -> None:
    assert _orphan(tmp_path / "3")._is_ours()


def test_a_later_attempt_of_another_start_is_somebody_elses(tmp_path: Path) -> None:
    orphan = _orphan(tmp_path / "3")
    ledger.write(RunPaths(tmp_path / "3"), ledger.STARTED, 3, job_id="7_3", restart_count=2)
    assert not orphan._is_ours()


def test_a_later_attempt_of_this_start_is_looked_after_too(tmp_path: Path) -> None:
    """Its supervisor died before it had told the agents, or even before it had a word of it."""
    orphan = _orphan(tmp_path / "3")
    RunPaths(tmp_path / "3").attempt(3).directory.mkdir(parents=True)
    assert orphan._is_ours()
    ledger.write(RunPaths(tmp_path / "3"), ledger.STARTED, 3, **START)
    assert orphan._is_ours()
    assert orphan.attempt == 3
    ledger.write(RunPaths(tmp_path / "3"), ledger.DECIDED, 3, action="stop")
    assert not orphan._is_ours()


def test_a_job_that_another_node_leads_by_now(tmp_path: Path) -> None:
    orphan = _orphan(tmp_path / "3")
    ledger.write(RunPaths(tmp_path / "3"), ledger.STARTED, 3, **START, instead_of="n7")
    assert orphan._is_ours()
    ledger.write(RunPaths(tmp_path / "3"), ledger.STARTED, 4, **START, instead_of="n1")
    assert not orphan._is_ours()


@pytest.mark.parametrize(
    ("action", "ours"), [("restart", True), ("requeue", True), ("stop", False)]
)
def test_what_the_supervisor_had_decided(tmp_path: Path, action: str, ours: bool) -> None:
    orphan = _orphan(tmp_path / "3")
    ledger.write(RunPaths(tmp_path / "3"), ledger.DECIDED, 2, action=action)
    assert orphan._is_ours() == ours


def test_a_supervisor_that_lives_after_all(tmp_path: Path, switchboard: Switchboard) -> None:
    """It had given this node up, and proves that it lives when it is asked."""
    orphan = _orphan(tmp_path / "3", switchboard.address)
    over = threading.Event()

    def lead() -> None:
        while not over.is_set():
            switchboard.poll(0.1)

    leader = threading.Thread(target=lead)
    leader.start()
    try:
        assert not orphan._is_ours()
    finally:
        over.set()
        leader.join()


def test_a_node_that_is_cut_off_does_not_take_the_supervisor_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Slurm nor the supervisor can be reached; then both answer again."""
    orphan = _orphan(tmp_path / "3", "127.0.0.1:1")
    answers = [JobFacts(), JobFacts(), JobFacts(state="RUNNING", restarts=1)]
    monkeypatch.setattr(job, "facts", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(orphan, "_supervisor_answers", lambda: not answers)
    monkeypatch.setattr("hpcrun.run.job.takeover._TURN", 0.01)
    assert not orphan._is_ours()


def test_a_run_that_ends_while_slurm_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = _orphan(tmp_path / "3")

    def facts(*_: Any, **__: Any) -> JobFacts:
        ledger.set_intent(RunPaths(tmp_path / "3"), ledger.FINISHED)
        return JobFacts()

    monkeypatch.setattr(job, "facts", facts)
    monkeypatch.setattr("hpcrun.run.job.takeover._TURN", 0.01)
    assert not orphan._is_ours()


def test_the_job_goes_on_without_suspect_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was submitted so, and what is excluded as it is requeued takes the place of that."""
    orphan, asked = _orphan(tmp_path / "3"), list[Any]()
    RunPaths(tmp_path / "3").attempt(2).directory.mkdir(parents=True)
    known = SuspectChoice((SuspectNode("n9", "slow", "bad_node", time.time()),))
    monkeypatch.setattr(suspect_exclusion, "left_out", lambda *_: known)
    monkeypatch.setattr(job, "requeue", lambda _, out, **__: asked.extend(out))
    monkeypatch.setattr("hpcrun.run.job.takeover._TURN", 0.01)
    orphan.requeue(silent=True)
    assert asked == ["n9", "n1"]


def test_a_supervisor_whose_port_nobody_listens_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    assert _orphan(tmp_path / "3", address)._is_ours()
    assert time.monotonic() - began < _PATIENCE


def test_a_supervisor_that_does_not_run_any_more(
    tmp_path: Path, switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is open, and nobody answers: it is stopped."""
    monkeypatch.setattr("hpcrun.run.job.takeover._PATIENCE", 1.0)
    assert _orphan(tmp_path / "3", switchboard.address)._is_ours()


@pytest.mark.parametrize(
    ("ours", "claimed", "done"),
    [
        (True, False, ["release", "lead"]),
        (False, False, ["requeue"]),
        (True, True, ["release"]),
    ],
)
def test_who_leads_in_place_of_the_batch_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool, claimed: bool, done: list[str]
) -> None:
    orphan, calls = _orphan(tmp_path / "3"), list[str]()
    paths = RunPaths(tmp_path / "3")
    paths.attempt(2).directory.mkdir(parents=True)
    if claimed:
        assert new_supervisor.claim(paths, 2) is not None
        ledger.write(paths, ledger.STARTED, 3, **START, instead_of="n1")
    monkeypatch.setattr(new_supervisor, "can_lead", lambda *_: True)
    monkeypatch.setattr(new_supervisor, "lead", lambda *_: calls.append("lead"))
    monkeypatch.setattr(orphan, "_is_ours", lambda: ours)
    monkeypatch.setattr(orphan, "requeue", lambda **_: calls.append("requeue"))
    assert orphan.go_on(lambda: calls.append("release"), silent=True) == claimed
    assert calls == done
    # What was not its own is given back.
    assert (new_supervisor.claim(paths, 2) is None) == (ours or claimed)
    calls.clear()
    assert not orphan.go_on(lambda: calls.append("release"), silent=False)
    assert calls == ["requeue"]
