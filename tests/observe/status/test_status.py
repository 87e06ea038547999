"""Status from files on disk and from Slurm's answers, given here by a shim: not a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from hpcrun.host import start_ticks
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import jobs
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.slurm.queue import JobState
from hpcrun.state import files, ledger
from hpcrun.text import json_pieces
from tests.support.experiment import T0, Experiment, path_with, shim_calls, slurm_shim

FIELDS = {
    *("experiment", "run", "state", "attempt", "step", "total_steps", "swept", "metrics"),
    *("job_id", "nodes", "cause", "reason", "updated", "directory", "submitted"),
}


def line(job: str, state: str, reason: str = "None", nodes: str = "") -> str:
    return f"{job}|{state}|{reason}|{nodes}|N/A\n"


def past(job: str, state: str, code: str = "0:0") -> str:
    return f"{job}|{state}|None|node1|Unknown|{code}|2020-01-02T03:04:05\n"


def of(study: Experiment, **options: object) -> list[RunStatus]:
    selected = Finder(study.paths.directory.parent).runs(study.paths)
    return statuses(selected, **options)  # type: ignore[arg-type]


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "root")


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shim"
    monkeypatch.setenv("PATH", path_with(directory))
    return directory


def test_one_query_for_an_array(study: Experiment, shim: Path) -> None:
    study.submit(range(6))
    for run in range(1, 5):
        study.start(run, job_id=f"100_{run}", nodes=("node1", "node2"))
        study.metrics(run, 1, [10, 20], loss=0.5)
    study.end(1)
    study.end(2, outcome="failed", kind="rank_crash", message="rank 1 was ended by SIGKILL")
    slurm_shim(
        shim,
        squeue=line("100_3", "RUNNING", nodes="node[1-2]")
        + line("100_[0,5]", "PENDING", "Resources"),
        sacct=past("100_2", "FAILED", "1:0") + past("100_4", "NODE_FAIL"),
    )
    found = of(study)
    states = [status.state for status in found]
    assert states == ["pending", "completed", "failed", "running", "failed", "pending"]
    assert [call.split()[0] for call in shim_calls(shim)] == ["squeue", "sacct"]
    assert found[0].reason == "Resources: waits for free nodes"
    assert found[2].cause == {"kind": "rank_crash", "message": "rank 1 was ended by SIGKILL"}
    assert found[3].nodes == ["node1", "node2"]
    assert found[3].reason is None
    assert "Slurm: NODE_FAIL" in (found[4].reason or "")
    assert (found[3].step, found[3].total_steps, found[3].metrics) == (20, 100, {"loss": 0.5})
    data = json.loads(json.dumps([status.to_data() for status in found]))
    assert all(set(one) >= FIELDS for one in data)
    assert data[0]["attempt"] is data[0]["step"] is data[0]["metrics"] is None


def test_finished_runs_are_not_asked_for(study: Experiment, shim: Path) -> None:
    study.submit(range(3))
    for run in range(3):
        study.start(run, job_id=f"100_{run}")
        study.end(run)
    slurm_shim(shim)
    assert {status.state for status in of(study)} == {"completed"}
    assert shim_calls(shim) == []


def test_slurm_does_not_answer(study: Experiment, shim: Path) -> None:
    study.submit(range(3))
    study.start(1, job_id="100_1")
    study.metrics(1, 1, [40], loss=0.5)
    study.start(2, job_id="100_2")
    study.end(2, outcome="failed", kind="rank_crash", message="boom")
    slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
    said: list[str] = []
    found = of(study, warn=said.append)
    assert [status.state for status in found] == ["pending", "running", "failed"]
    assert all("Slurm does not answer; as of 2023" in (one.reason or "") for one in found[:2])
    assert found[2].reason == "boom"
    assert len(said) == 1
    assert said[0].startswith("warning: Slurm does not answer")
    assert found[1].updated == T0 + 60 + 1


def test_no_slurm_on_this_machine(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.submit((0,))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert of(study)[0].state == "pending"


def test_slurm_forgot_the_job(study: Experiment, shim: Path) -> None:
    study.submit((0, 1))
    study.start(1, job_id="100_1")
    slurm_shim(shim)
    found = of(study)
    assert [status.state for status in found] == ["unknown", "unknown"]
    assert "does not know job 100_0" in (found[0].reason or "")


def test_an_end_that_comes_while_slurm_is_asked(study: Experiment) -> None:
    study.submit((0,))
    study.start(0)

    def ask(refs: list[JobRef]) -> Answers:
        study.end(0)
        return Answers({ref.job_id: JobState(ref.job_id, "COMPLETED") for ref in refs})

    assert of(study, ask=ask)[0].state == "completed"


def test_torn_files_are_tolerated(study: Experiment, shim: Path) -> None:
    study.submit((0,))
    study.start(0)
    slurm_shim(shim, squeue=line("100", "RUNNING"))
    run = study.run(0)
    with open(run.ledger, "ab") as stream:
        stream.write(b'{"event": "attempt_ended", "attempt": 1, "outco')
    run.intent.write_bytes(b'{"intent": ')
    run.attempt(1).metrics.touch()
    assert of(study)[0].state == "running"
    run.intent.write_bytes(b"[]")
    run.ledger.write_bytes(b"")
    assert of(study)[0].state == "running"
    run.ledger.write_bytes(b'{"event": "attempt_ended", "attempt": 1, "outcome": "failed"}\n')
    assert of(study)[0].state == "failed"


def test_numbers_that_json_cannot_hold(study: Experiment, shim: Path) -> None:
    study.submit((0,))
    study.start(0)
    study.metrics(0, 1, [1], loss=float("nan"), up=float("inf"), fine=1.0)
    slurm_shim(shim)
    data = of(study)[0].to_data()
    assert json.loads("".join(json_pieces(data)))["metrics"] == {
        "loss": None,
        "up": None,
        "fine": 1.0,
    }


def test_resubmitted_after_a_failure(study: Experiment, shim: Path) -> None:
    study.submit((0,))
    study.start(0)
    study.end(0, outcome="failed", kind="rank_crash", message="boom")
    study.submit((0,), job_id="200", when=time.time() + 100)
    slurm_shim(shim, squeue=line("200", "PENDING", "Priority"))
    found = of(study)[0]
    assert (found.state, found.job_id, found.cause) == ("pending", "200", None)


def test_local_process(study: Experiment) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        where = {"host": os.uname().nodename, "start_ticks": start_ticks(child.pid)}
        job_id = f"local:{child.pid}"
        study.submit((0, 1, 2), job_id=job_id, **where)
        study.start(0, job_id=job_id)
        study.start(2, job_id=job_id)
        journal = study.paths.submission(1).journal
        files.append(journal, {"event": "ended", "time": T0, "run": 2, "exit_code": 1})
        assert [status.state for status in of(study)] == ["running", "waiting", "failed"]
    finally:
        child.kill()
        child.wait()
    found = of(study)
    assert [status.state for status in found] == ["failed", "failed", "failed"]
    assert "no end of attempt 1" in (found[0].reason or "")


def test_local_process_of_another_host(study: Experiment) -> None:
    study.submit((0,), job_id="local:1", host="elsewhere", start_ticks=1)
    study.start(0, job_id="local:1")
    found = of(study)[0]
    assert found.state == "running"
    assert "it runs on elsewhere" in (found.reason or "")


def test_a_process_id_that_was_taken_by_another(study: Experiment) -> None:
    host = os.uname().nodename
    study.submit((0,), job_id=f"local:{os.getpid()}", host=host, start_ticks=1)
    study.start(0, job_id=f"local:{os.getpid()}")
    assert of(study)[0].state == "failed"


@pytest.mark.parametrize(("intent", "state"), [(None, "unknown"), (ledger.FINISHED, "completed")])
def test_a_ledger_that_is_gone(
    study: Experiment, shim: Path, intent: str | None, state: str
) -> None:
    study.submit((0,))
    slurm_shim(shim, sacct=past("100", "FAILED", "1:0"))
    assert (of(study)[0].state, of(study)[0].over) == ("failed", True)
    study.start(0)
    if intent:
        ledger.set_intent(study.run(0), intent)
    study.run(0).ledger.unlink()
    study.run(0).attempt(1).directory.mkdir(parents=True, exist_ok=True)
    (found,) = of(study)
    assert (found.state, found.over) == (state, True)
    assert str(found.reason).endswith("ledger.jsonl is gone, which told how attempt 1 ended")


def test_cancelled_in_the_queue_until_slurm_has_let_go(study: Experiment, shim: Path) -> None:
    study.submit((0,))
    ledger.set_intent(study.run(0), ledger.CANCELLED)
    slurm_shim(shim, squeue=line("100", "PENDING", "Priority"))
    assert (of(study)[0].state, of(study)[0].over) == ("cancelled", False)
    slurm_shim(shim, sacct=past("100", "CANCELLED by 1000"))
    assert (of(study)[0].state, of(study)[0].over) == ("cancelled", True)


def test_thousand_runs(study: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 1000
    study.submit(range(count), swept={n: {"config.lr": n * 1e-6} for n in range(count)})
    for run in range(0, count, 2):
        study.start(run, job_id=f"100_{run}")
        study.metrics(run, 1, range(0, 500, 10), loss=0.5)
    monkeypatch.setattr(
        jobs, "ask_slurm", lambda ids, answers, **_: setattr(answers, "problem", "Slurm is away")
    )
    began = time.process_time()
    found = of(study)
    took = time.process_time() - began
    assert len(found) == count
    assert found[0].step == 490
    assert took < 1.0, f"status of {count} runs took {took:.2f} s of CPU"


def test_of_a_script_that_ended_without_metrics_the_ledger_alone_is_read(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.submit(range(2))
    for run, outcome in enumerate(("completed", "failed")):
        study.start(run, job_id=f"100_{run}")
        study.metrics(run, 1, [5], restored=None)
        study.end(run, outcome=outcome)
    study.start(1, attempt=2, job_id="100_1")
    opened: set[Path] = set()
    read = files.last_line
    monkeypatch.setattr(files, "last_line", lambda path: opened.add(path) or read(path))
    monkeypatch.setattr(jobs, "ask_slurm", lambda ids, answers, **_: True)
    assert [one.step for one in of(study)] == [5, 5]
    assert opened == {study.run(1).attempt(number).log_sizes for number in (1, 2)}
