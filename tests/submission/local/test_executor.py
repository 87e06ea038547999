"""The local executor with real processes: nothing of it outlives its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.host import start_ticks
from hpcrun.state import files, journal, ledger
from hpcrun.state.layout import SubmissionPaths
from hpcrun.submission import run_actions
from hpcrun.submission.local import executor, processes
from tests.support.plans import command_plan, submission_of
from tests.support.waiting import until

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / "spec.yaml").write_text("")
    return directory


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[SubmissionPaths]]:
    submissions: list[SubmissionPaths] = []
    yield submissions
    for submission in submissions:
        processes.kill_all(submission.directory)


def _submit(
    tmp_path: Path, code: Path, started: list[SubmissionPaths], *arguments: Any, **options: Any
) -> tuple[SubmissionPaths, dict[str, Any]]:
    submission = submission_of(command_plan(code, *arguments, **options), tmp_path / "root")
    started.append(submission)
    entry = executor.start(submission)
    runs = json.loads(submission.plan.read_text())["arrays"][0]["runs"]
    journal.write(submission, journal.SUBMITTED, 0, runs, **entry)
    return submission, entry


def _outcomes(submission: SubmissionPaths, run: int) -> list[str | None]:
    return [attempt.outcome for attempt in ledger.read(submission.experiment.run(run))]


def _works(submission: SubmissionPaths, run: int) -> bool:
    attempts = ledger.read(submission.experiment.run(run))
    return bool(attempts and attempts[-1].workers_started)


def _left(submission: SubmissionPaths) -> list[processes.LocalProcess]:
    return list(processes.of_submission(submission.directory))


def test_runs_come_to_their_end(tmp_path: Path, code: Path, started: list[SubmissionPaths]) -> None:
    commands = {1: ["true"], 2: ["false"]}
    submission, entry = _submit(tmp_path, code, started, commands)
    assert entry["job_id"] == f"local:{entry['job_id'].partition(':')[2]}"
    until(lambda: not processes.alive(entry))
    assert _outcomes(submission, 1) == ["completed"]
    assert _outcomes(submission, 2) == ["failed"]
    jobs = journal.jobs(submission)
    assert jobs[1].ended
    assert jobs[1].job_id == entry["job_id"]
    ends = [each for each in files.read_lines(submission.journal) if each["event"] == "ended"]
    assert [(end["run"], bool(end["exit_code"])) for end in ends] == [(1, False), (2, True)]
    assert ledger.read(submission.experiment.run(1))[0].started["job_id"] == entry["job_id"]


def test_the_environment_is_clean(
    tmp_path: Path, code: Path, started: list[SubmissionPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "leaked")
    monkeypatch.setenv("PYTHONPATH", "/leaked")
    environment = {
        "variables": {"GREETING": "a 'b' $(c) \"d\"\n;e"},
        "setup": ["export FROM_SETUP=yes"],
    }
    submission, entry = _submit(
        tmp_path, code, started, {1: ["env", "-0"]}, environment=environment
    )
    until(lambda: not processes.alive(entry))
    output = submission.experiment.run(1).attempt(1).rank_log(0).read_text()
    assert "leaked" not in output
    assert f"GREETING={environment['variables']['GREETING']}\0" in output  # type: ignore[call-overload]
    assert "FROM_SETUP=yes\0" in output


@pytest.mark.parametrize(
    ("setup", "variables", "expected"),
    [
        ([], {"PYTHONPATH": "/mine"}, ":/mine"),
        (["export PYTHONPATH=/site"], {}, ":/site"),
        (["export PYTHONPATH=/site X=1"], {"PYTHONPATH": "/a b", "X": "2"}, ":/a b"),
        (["true"], {}, ""),
    ],
)
def test_pythonpath_is_joined_as_under_slurm(
    tmp_path: Path, code: Path, setup: list[str], variables: dict[str, str], expected: str
) -> None:
    environment = {"setup": setup, "variables": variables}
    plan = command_plan(code, {1: ["true"]}, environment=environment)
    submission = SubmissionPaths(tmp_path / "it's")
    run = plan.run(1)
    argv = executor.supervisor_argv(submission, plan, run)
    answer = subprocess.run(
        [*argv[: argv.index("bash", 1) + 1], "env", "-0"] if setup else ["env", "-0"],
        env=executor.job_environment(submission, plan, run),
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in answer.stdout.split("\0") if "=" in line)
    assert found["PYTHONPATH"] == f"{submission.package}{expected}"
    assert found.get("X") == variables.get("X")


def test_one_at_a_time_unless_told_otherwise(
    tmp_path: Path, code: Path, started: list[SubmissionPaths]
) -> None:
    commands = {1: SLEEP, 2: SLEEP, 3: SLEEP}
    submission, _ = _submit(tmp_path, code, started, commands, max_parallel=2)
    until(lambda: _works(submission, 1) and _works(submission, 2))
    assert not submission.experiment.run(3).directory.exists()
    executor.cancel(submission)
    assert _left(submission) == []


def test_cancel_leaves_nothing(tmp_path: Path, code: Path, started: list[SubmissionPaths]) -> None:
    stubborn = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork(); os.setsid()"
    argv = [sys.executable, "-c", f"{stubborn} if os.fork() == 0 else 0; time.sleep(300)"]
    submission, entry = _submit(tmp_path, code, started, {1: argv})
    until(lambda: _works(submission, 1) and len(_left(submission)) >= 6)
    ledger.set_intent(submission.experiment.run(1), ledger.CANCELLED)
    executor.cancel(submission)
    assert _left(submission) == []
    assert not processes.alive(entry)
    assert _outcomes(submission, 1) == ["cancelled"]


def test_cancel_of_one_run_lets_the_others_go_on(
    tmp_path: Path, code: Path, started: list[SubmissionPaths]
) -> None:
    submission, entry = _submit(tmp_path, code, started, {1: SLEEP, 2: ["true"]})
    until(lambda: _works(submission, 1))
    ledger.set_intent(submission.experiment.run(1), ledger.CANCELLED)
    executor.cancel(submission, {1})
    until(lambda: not processes.alive(entry))
    assert _outcomes(submission, 1) == ["cancelled"]
    assert _outcomes(submission, 2) == ["completed"]


def test_a_run_that_was_cancelled_while_it_waited_never_starts(
    tmp_path: Path, code: Path, started: list[SubmissionPaths]
) -> None:
    submission, entry = _submit(tmp_path, code, started, {1: ["sleep", "3"], 2: ["true"]})
    ledger.set_intent(submission.experiment.run(2), ledger.CANCELLED)
    until(lambda: not processes.alive(entry))
    assert _outcomes(submission, 1) == ["completed"]
    assert _outcomes(submission, 2) == []
    assert journal.jobs(submission)[2].ended


def test_a_run_that_was_cancelled_while_it_waited_is_over_at_once(
    tmp_path: Path, code: Path, started: list[SubmissionPaths]
) -> None:
    submission, entry = _submit(tmp_path, code, started, {1: ["sleep", "4"], 2: ["true"]})
    until(lambda: _works(submission, 1))
    waiting = submission.experiment.run(2)
    ledger.set_intent(waiting, ledger.CANCELLED)
    executor.cancel(submission, {2})
    assert processes.alive(entry)
    decisions = run_actions.decide(submission.experiment, [1, 2])
    assert [decision.action for decision in decisions] == [
        run_actions.ATTACHED,
        run_actions.RESUMED,
    ]
    # Submitted again: its run is no longer cancelled, and not this executor's either.
    ledger.set_intent(waiting, None)
    until(lambda: not processes.alive(entry))
    assert _outcomes(submission, 1) == ["completed"]
    assert _outcomes(submission, 2) == []


@pytest.mark.parametrize("victim", ["executor", "supervisor"])
def test_killed_without_a_word(
    tmp_path: Path, code: Path, started: list[SubmissionPaths], victim: str
) -> None:
    submission, entry = _submit(tmp_path, code, started, {1: SLEEP})
    until(lambda: _works(submission, 1))
    pid = int(entry["job_id"].partition(":")[2])
    if victim == "supervisor":
        pid = ledger.read(submission.experiment.run(1))[0].started["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: _left(submission) == [])
    until(lambda: not processes.alive(entry))


def test_an_interpreter_that_is_gone(
    tmp_path: Path, code: Path, started: list[SubmissionPaths]
) -> None:
    environment = {"python": "/nonexistent/python"}
    submission, entry = _submit(tmp_path, code, started, {1: ["true"]}, environment=environment)
    until(lambda: not processes.alive(entry))
    assert "No such file" in submission.local_log(1).read_text()
    assert journal.jobs(submission)[1].ended


def test_another_process_with_the_same_id_is_not_it() -> None:
    host, pid = os.uname().nodename, os.getpid()
    ticks = start_ticks(pid)
    assert ticks
    entry = {"job_id": f"local:{pid}", "host": host, "start_ticks": ticks}
    assert processes.alive(entry) is True
    assert processes.alive({**entry, "start_ticks": ticks - 1}) is False
    assert processes.alive({**entry, "host": "elsewhere"}) is None
    assert processes.alive({}) is None
    assert not processes.LocalProcess(pid, ticks - 1, 1).signal(signal.SIGKILL)


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    until(lambda: start_ticks(process.pid) is None)
    process.wait()


def test_in_the_foreground(tmp_path: Path, code: Path) -> None:
    submission = submission_of(command_plan(code, {1: ["true"], 2: ["true"]}), tmp_path / "root")
    assert executor.Runner(submission, (1, 2)).bring_to_end() == 0
    assert _outcomes(submission, 2) == ["completed"]


@pytest.mark.parametrize("foreground", [True, False])
def test_modules_of_the_current_directory_are_not_taken(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, foreground: bool
) -> None:
    for name in ("hpcrun.py", "dataclasses.py"):
        (tmp_path / name).write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    submission = submission_of(command_plan(code, {1: ["true"]}), tmp_path / "root")
    if foreground:
        assert executor.Runner(submission, (1,)).bring_to_end() == 0
    else:
        entry = executor.start(submission)
        until(lambda: not processes.alive(entry))
    assert _outcomes(submission, 1) == ["completed"]


def test_a_run_that_asks_for_it_is_started_again(tmp_path: Path, code: Path) -> None:
    commands = {1: ["sh", "-c", "test $HPCRUN_ATTEMPT = 3 || exit 75"], 2: ["true"]}
    plan = command_plan(code, commands, recovery={"requeue": True})
    submission = submission_of(plan, tmp_path / "root")
    assert executor.Runner(submission, (1, 2)).bring_to_end() == 0
    assert _outcomes(submission, 1) == ["stopped", "stopped", "completed"]
    assert _outcomes(submission, 2) == ["completed"]


def test_a_run_that_fails_again_and_again_is_given_up(tmp_path: Path, code: Path) -> None:
    plan = command_plan(code, {1: ["false"]}, recovery={"requeue": True})
    submission = submission_of(plan, tmp_path / "root")
    assert executor.Runner(submission, (1,)).bring_to_end() == 1
    assert _outcomes(submission, 1) == ["failed"] * 3


def test_a_run_that_is_left_out(tmp_path: Path, code: Path) -> None:
    submission = submission_of(command_plan(code, {1: ["true"], 2: ["true"]}), tmp_path / "root")
    assert executor.Runner(submission, (1, 2), before=lambda run: run == 2).bring_to_end() == 0
    assert not submission.experiment.run(1).directory.exists()
    assert _outcomes(submission, 2) == ["completed"]


def test_interrupted_in_the_foreground(tmp_path: Path, code: Path) -> None:
    submission = submission_of(command_plan(code, {1: SLEEP}), tmp_path / "root")
    program = (
        "import sys; from pathlib import Path;"
        "from hpcrun.submission.local import executor as local;"
        "from hpcrun.state.layout import SubmissionPaths;"
        "local.Runner(SubmissionPaths(Path(sys.argv[1])), (1,)).bring_to_end()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(submission.directory)], stderr=subprocess.DEVNULL
    )
    until(lambda: _works(submission, 1))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30)
    assert _left(submission) == []
    assert _outcomes(submission, 1) in (["stopped"], ["failed"])
