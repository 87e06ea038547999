"""The user's command for ends of runs, with real supervisors and processes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.policy import causes, recovery
from hpcrun.run.job import notify
from hpcrun.run.protocol import stop_flag
from hpcrun.state import files, ledger
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.state.spec import notify_block
from hpcrun.state.spec.notify_block import EVENTS
from tests.support import command
from tests.support.place import Place
from tests.support.waiting import until

# Notes what it was told, in the run's directory.
NOTE = 'cat >> told; echo "$HPCRUN_EVENT $HPCRUN_RUN $HPCRUN_ATTEMPT $HPCRUN_MESSAGE" >> variables'


def wanted(script: str = NOTE, events: tuple[str, ...] = EVENTS) -> dict[str, Any]:
    return {"command": ["bash", "-c", script], "events": list(events)}


def told(place: Place) -> list[dict[str, Any]]:
    return list(files.read_lines(place.run.directory / "told"))


def test_a_run_that_finished_is_told_of_once(place: Place) -> None:
    place.submit("true", notify=wanted())
    code, said = place.supervise()
    assert code == 0
    assert "notify.command was told: finished" in said
    assert place.supervise()[0] == 0
    (facts,) = told(place)
    expected = {"event": "finished", "experiment": "study", "run": 3, "attempt": 1, "cause": None}
    assert {key: facts[key] for key in expected} == expected
    assert facts["directory"] == str(place.run.directory)
    assert facts["job_id"] == place.attempt().started["job_id"]
    variables = (place.run.directory / "variables").read_text()
    assert variables == "finished study/3 1 \n"


def test_a_run_that_failed_for_good(place: Place) -> None:
    place.submit("exit 3", notify=wanted())
    code, _ = place.supervise()
    assert code == 3
    (facts,) = told(place)
    assert (facts["event"], facts["cause"]["kind"]) == ("failed", "rank_crash")
    assert facts["message"] == "rank 0 on local0 ended with exit code 3"
    assert facts["reason"] == "recovery.requeue is false"
    assert "log_tail" not in facts["cause"]


def test_a_long_message_is_whole_in_the_object_alone(place: Place) -> None:
    script = "raise ValueError('begin ' + 'x' * 3000 + ' end')"
    place.submit(f'exec {sys.executable} -c "{script}"', notify=wanted())
    place.supervise()
    (facts,) = told(place)
    assert len(facts["message"]) > 1000
    variable = (place.run.directory / "variables").read_text()
    assert variable.startswith("failed study/3 1 rank 0 on local0 raised ValueError: begin xxx")
    assert len(variable) < 350


def test_what_is_mended_by_itself_is_not_told(place: Place) -> None:
    place.submit("[ $HPCRUN_ATTEMPT = 2 ] || exit 3", recovery={}, notify=wanted())
    assert place.supervise()[0] == 0
    assert [(facts["event"], facts["attempt"]) for facts in told(place)] == [("finished", 2)]


def test_a_supervisor_that_was_killed_is_told_of_by_the_next(place: Place) -> None:
    place.submit("sleep 300", notify=wanted())
    supervisor = place.start()
    until(lambda: any(attempt.workers_started for attempt in ledger.read(place.run)))
    supervisor.kill()
    supervisor.communicate()
    until(lambda: place.scratch() == [])
    place.close()
    code, said = place.supervise()
    assert code == 1
    assert "not started again: recovery.requeue is false" in said
    (facts,) = told(place)
    assert (facts["event"], facts["attempt"]) == ("needs_person", 1)


def test_its_failure_changes_nothing(place: Place) -> None:
    place.submit("true", notify=wanted("exit 7"))
    code, said = place.supervise()
    assert code == 0
    assert "notify.command ended with exit code 7" in said
    assert ledger.intent(place.run) == "finished"
    assert place.attempt().not_told == "notify.command ended with exit code 7"
    shown = command.hpcrun("why", "study/3", "--root", place.root).stdout
    assert "Nobody was told: notify.command ended with exit code 7." in shown


def finished(
    place: Place,
    command: list[str],
    *,
    outcome: str = "completed",
    cause: dict[str, Any] | None = None,
    **notify: Any,
) -> RunPlan:
    """A run whose ledger says that it completed, or was given up for a cause."""
    place.run.attempt(1).directory.mkdir(parents=True)
    ledger.write(place.run, ledger.STARTED, 1, job_id="local:1")
    ledger.write(place.run, ledger.ENDED, 1, outcome=outcome, exit_code=0, cause=cause)
    ledger.write(place.run, ledger.DECIDED, 1, action="stop" if cause else "nothing", reason="")
    spec = {"notify": {**wanted(), "command": command, **notify}}
    return RunPlan(3, "identity", "", {}, Entry("command"), spec)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["bash", "-c", "kill -KILL $$"], "notify.command was ended by SIGKILL"),
        (["/no/such/program"], "/no/such/program cannot be run: No such file or directory"),
    ],
)
def test_what_it_ended_with_is_said(place: Place, command: list[str], says: str) -> None:
    said: list[str] = []
    notify.tell("study", finished(place, command), place.run, said.append)
    assert len(said) == 1
    assert says in said[0]


def test_signals_that_slurm_sends_to_all_do_not_end_it(place: Place) -> None:
    before = {number: signal.getsignal(number) for number in stop_flag.SIGNALS}
    script = "; ".join(f"kill -{number.value} $$" for number in stop_flag.SIGNALS)
    notify.tell("study", finished(place, ["bash", "-c", f"{script}; touch on"]), place.run, print)
    assert (place.run.directory / "on").exists()
    assert {number: signal.getsignal(number) for number in stop_flag.SIGNALS} == before


def test_only_the_events_that_are_wanted(place: Place) -> None:
    run = finished(place, ["touch", "ran"], events=[notify_block.FAILED])
    notify.tell("study", run, place.run, print)
    assert not (place.run.directory / "ran").exists()
    assert place.attempt().notified is None


def test_one_that_hangs_is_killed_with_all_that_it_started(place: Place) -> None:
    run = finished(place, ["bash", "-c", "sleep 300 & echo $! > child; wait"])
    said: list[str] = []
    notify.tell("study", run, place.run, said.append, timeout=1)
    assert said == ["notify.command was killed: it took more than 1 seconds"]
    child = int((place.run.directory / "child").read_text())
    until(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    """Whether a process runs; what nobody has waited for is gone too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_reads_nothing_and_arguments_that_no_shell_sees(place: Place) -> None:
    run = finished(place, ["touch", "$(echo no)", "; true"])
    said: list[str] = []
    notify.tell("study", run, place.run, said.append)
    assert said == ["notify.command was told: finished"]
    assert {"$(echo no)", "; true"} <= {path.name for path in place.run.directory.iterdir()}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a\0b", r"a\x00b"),
        ("\ud800", r"\ud800"),
        ("\x1b[2J\r\nSubject: x\u202e", r"\x1b[2J Subject: x\u202e"),
        ("x" * 300_000, f"{'x' * 120}… (299,760 characters more) …{'x' * 120}"),
    ],
    ids=["NUL", "half a character", "a head of a mail", "too long"],
)
def test_messages_that_no_variable_can_hold(place: Place, message: str, shown: str) -> None:
    cause = {"kind": "rank_crash", "message": message}
    command = ["bash", "-c", 'cat > told; printf %s "$HPCRUN_MESSAGE" > variables']
    run = finished(place, command, outcome="failed", cause=cause)
    said: list[str] = []
    notify.tell("study", run, place.run, said.append)
    assert said == ["notify.command was told: failed"]
    assert (place.run.directory / "variables").read_text() == shown
    assert told(place)[0]["message"] == message


def test_what_cannot_be_recorded_is_not_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is not really full: the ledger alone refuses."""
    run = finished(place, ["touch", "ran"])

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ledger, "write", full)
    said: list[str] = []
    notify.tell("study", run, place.run, said.append)
    assert len(said) == 1
    assert "notify.command is not run, as the ledger cannot be written" in said[0]
    assert not (place.run.directory / "ran").exists()


def test_one_that_was_about_to_be_run_is_not_run_again(place: Place) -> None:
    run = finished(place, ["touch", "ran"])
    ledger.write(place.run, ledger.NOTIFIED, 1, what=notify_block.FINISHED)
    notify.tell("study", run, place.run, print)
    assert not (place.run.directory / "ran").exists()


ENDS = {
    "completed": (causes.COMPLETED, None, recovery.NOTHING, False, notify_block.FINISHED),
    "pruned": (causes.PRUNED, causes.PRUNED, recovery.NOTHING, False, notify_block.FINISHED),
    "a crash, tried again": (causes.FAILED, causes.RANK_CRASH, recovery.REQUEUE, True, None),
    "crashes, given up": (
        *(causes.FAILED, causes.RANK_CRASH, recovery.STOP, False, notify_block.FAILED),
    ),
    "its own time limits, given up": (
        *(causes.STOPPED, causes.TIME_LIMIT, recovery.STOP, False, notify_block.FAILED),
    ),
    "lost nodes, given up": (
        *(causes.FAILED, causes.NODE_FAILURE, recovery.STOP, False, notify_block.NEEDS_PERSON),
    ),
    "Slurm did not requeue it": (
        *(causes.STOPPED, causes.PREEMPTED, recovery.REQUEUE, False, notify_block.NEEDS_PERSON),
    ),
    "Slurm had requeued it": (causes.STOPPED, causes.REQUEUED, recovery.NOTHING, False, None),
    "cancelled": (causes.CANCELLED, causes.CANCELLED, recovery.NOTHING, False, None),
}


@pytest.mark.parametrize("case", ENDS)
def test_events(case: str) -> None:
    outcome, kind, action, goes_on, expected = ENDS[case]
    cause = {"kind": kind, "message": ""} if kind else None
    ended = {"outcome": outcome, "cause": cause}
    last = ledger.Attempt(1, ended=ended, decided={"action": action})
    assert notify.event_of(last, goes_on=goes_on) == expected


def test_an_attempt_without_an_end_is_none() -> None:
    assert notify.event_of(ledger.Attempt(1), goes_on=False) is None
