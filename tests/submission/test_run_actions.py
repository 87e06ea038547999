"""What a submission does about each run, from files on disk and a shim of Slurm."""

from __future__ import annotations

import dataclasses
import datetime
import os
import time
from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile, ClusterUnreachable, UsageError
from hpcrun.host import start_ticks
from hpcrun.state import history, journal, ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission import run_actions, submit
from tests.support.plans import command_plan, submission_of
from tests.support.slurm_shim import Shim

DOWN = {"err": "error: Unable to contact slurm controller (connect failure)\n", "code": 1}


def _queue(job_id: str, state: str) -> str:
    return f"{job_id}|{state}|None|n1|1795179394\n"


@pytest.fixture(autouse=True)
def _has_slurm(shim: Shim) -> None:
    shim.answer("sbatch", {})


@pytest.fixture
def experiment(tmp_path: Path) -> ExperimentPaths:
    code = tmp_path / "code"
    code.mkdir()
    plan = command_plan(code, {1: ["true"], 2: ["true"], 3: ["true"]})
    return submission_of(plan, tmp_path / "root").experiment


def _submitted(experiment: ExperimentPaths, runs: list[int], **details: object) -> None:
    journal.write(experiment.submission(1), journal.SUBMITTED, 0, runs, **details)


def _actions(experiment: ExperimentPaths) -> list[str]:
    return [decision.action for decision in run_actions.decide(experiment, [1, 2, 3])]


def test_nothing_was_submitted(experiment: ExperimentPaths) -> None:
    assert _actions(experiment) == ["new", "new", "new"]
    numbers = history.numbers(history.plans(experiment))
    assert numbers == {
        "identity-1": 1,
        "identity-2": 2,
        "identity-3": 3,
    }


@pytest.mark.parametrize(
    ("recovery", "several", "one"),
    [
        ({}, "2 start again", "1 starts again"),
        (
            {"resume_args": ["--resume"]},
            "2 resume as recovery.resume says",
            "1 resumes as recovery.resume says",
        ),
    ],
)
def test_what_is_said_of_runs_that_are_submitted_again(
    experiment: ExperimentPaths, recovery: dict[str, list[str]], several: str, one: str
) -> None:
    _submitted(experiment, [1, 2], local=True)
    journal.write(experiment.submission(1), journal.ENDED, 0, [1, 2])
    plan = history.plans(experiment)[1]
    runs = tuple(dataclasses.replace(run, spec={"recovery": recovery}) for run in plan.runs)
    plan = dataclasses.replace(plan, runs=runs)

    def said() -> str:
        decisions = run_actions.decide(experiment, [1, 2, 3], ask=False)
        return submit.summary(plan, decisions).partition(";")[0]

    assert said() == f"experiment: 3 runs (1 new, {several})"
    experiment.run(1).checkpoints.mkdir(parents=True)
    assert said() == f"experiment: 3 runs (1 new, 1 goes on where it stopped, {one})"
    experiment.run(2).checkpoints.mkdir(parents=True)
    assert said() == "experiment: 3 runs (1 new, 2 go on where they stopped)"


def test_elements_of_an_array(experiment: ExperimentPaths, shim: Shim) -> None:
    _submitted(experiment, [1, 2, 3], job_id="50")
    queued = _queue("50_1", "RUNNING") + _queue("50_2", "PENDING") + _queue("50_3", "FAILED")
    shim.answer("squeue", {"out": queued})
    shim.answer("sacct", {"out": ""})
    assert _actions(experiment) == ["attached", "attached", "resumed"]
    assert [
        decision.job.job_id for decision in run_actions.decide(experiment, [2]) if decision.job
    ] == ["50_2"]


def test_intents_come_first(experiment: ExperimentPaths, shim: Shim) -> None:
    _submitted(experiment, [1, 2, 3], job_id="50")
    shim.answer("squeue", {"out": _queue("50_2", "COMPLETING") + _queue("50_1", "RUNNING")})
    shim.answer("sacct", {"out": ""})
    ledger.set_intent(experiment.run(1), ledger.FINISHED)
    ledger.set_intent(experiment.run(2), ledger.CANCELLED)
    ledger.set_intent(experiment.run(3), ledger.CANCELLED)
    assert _actions(experiment) == ["completed", "cancelling", "resumed"]
    ledger.set_intent(experiment.run(1), ledger.PRUNED)
    assert _actions(experiment) == ["pruned", "cancelling", "resumed"]


@pytest.mark.parametrize(("ago", "action"), [(5, "attached"), (600, "resumed")])
def test_a_job_that_completed_may_have_left_what_is_not_seen_yet(
    experiment: ExperimentPaths, shim: Shim, ago: float, action: str
) -> None:
    """Where its intent cannot be seen on this host it is not sent once more, for a while."""
    _submitted(experiment, [1, 2], job_id="50")
    end = datetime.datetime.fromtimestamp(time.time() - ago).isoformat()
    rows = f"50_1|COMPLETED|None|n1|1|0:0|{end}\n50_2|FAILED|None|n1|1|1:0|{end}\n"
    shim.answer("squeue", {"out": ""})
    shim.answer("sacct", {"out": rows})
    assert _actions(experiment)[:2] == [action, "resumed"]
    ledger.set_intent(experiment.run(1), ledger.FINISHED)
    assert _actions(experiment)[:2] == ["completed", "resumed"]


def test_the_newest_job_counts(experiment: ExperimentPaths, shim: Shim) -> None:
    _submitted(experiment, [1], job_id="50")
    _submitted(experiment, [1], job_id="51")
    shim.answer("squeue", {"out": _queue("51", "RUNNING")})
    assert _actions(experiment) == ["attached", "new", "new"]
    assert shim.calls[0][-2] == "--jobs=51"


def test_a_refusal_is_no_job(experiment: ExperimentPaths, shim: Shim) -> None:
    journal.write(experiment.submission(1), journal.SUBMITTING, 0, [1])
    journal.write(experiment.submission(1), journal.REFUSED, 0, [1], message="no")
    assert _actions(experiment) == ["new", "new", "new"]
    assert shim.calls == []


@pytest.mark.parametrize(("queued", "action"), [(True, "attached"), (False, "resumed")])
def test_a_submitter_that_died_while_it_asked(
    experiment: ExperimentPaths, shim: Shim, queued: bool, action: str
) -> None:
    journal.write(experiment.submission(1), journal.SUBMITTING, 0, [1, 2, 3])
    script = experiment.submission(1).script()
    jobs = _queue("60_1", "PENDING") if queued else ""
    shim.answer("squeue", {"out": f"60_[1-3]|60|{script}\n" if queued else ""}, {"out": jobs})
    shim.answer("sacct", {"out": ""})
    assert _actions(experiment)[0] == action


def test_a_controller_that_is_down_forbids_a_second_job(
    experiment: ExperimentPaths, shim: Shim
) -> None:
    _submitted(experiment, [1], job_id="50")
    shim.answer("squeue", DOWN)
    shim.answer("sacct", {"out": ""})
    with pytest.raises(ClusterUnreachable, match="job 50 still runs cannot be found out"):
        _actions(experiment)


def test_accounting_that_still_believes_in_a_job(experiment: ExperimentPaths, shim: Shim) -> None:
    _submitted(experiment, [1], job_id="50")
    shim.answer("squeue", {"out": ""})
    shim.answer("sacct", {"out": "50|RUNNING|None|n1|1795179394|0:0|Unknown\n"})
    assert _actions(experiment)[0] == "resumed"


def test_no_slurm_to_ask(experiment: ExperimentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    _submitted(experiment, [1], job_id="50")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ClusterUnreachable, match="no squeue on PATH"):
        _actions(experiment)


def test_local_processes(experiment: ExperimentPaths) -> None:
    me = {
        "job_id": f"local:{os.getpid()}",
        "host": os.uname().nodename,
        "start_ticks": start_ticks(os.getpid()),
    }
    _submitted(experiment, [1, 2], **me)
    _submitted(experiment, [3], **{**me, "start_ticks": 1})
    journal.write_end(experiment.submission(1), 2, 1)
    assert _actions(experiment) == ["attached", "resumed", "resumed"]


def test_a_process_of_another_host(experiment: ExperimentPaths) -> None:
    _submitted(experiment, [1], job_id="local:5", host="elsewhere", start_ticks=5)
    with pytest.raises(UsageError, match="started on elsewhere"):
        _actions(experiment)
    journal.write_end(experiment.submission(1), 1, 1)
    assert _actions(experiment)[0] == "resumed"


def test_a_plan_that_is_gone_is_an_error(experiment: ExperimentPaths) -> None:
    _submitted(experiment, [1, 2, 3], job_id="50")
    plans, jobs = history.plans(experiment), journal.newest_jobs(experiment)
    assert run_actions.changed_runs(jobs, plans, plans[1]) == set()
    experiment.submission(1).plan.unlink()
    with pytest.raises(BrokenFile, match=r"plan\.json is gone"):
        history.plans(experiment)
    with pytest.raises(FileNotFoundError):
        run_actions.changed_runs(jobs, {}, plans[1])
