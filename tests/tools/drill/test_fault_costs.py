"""What became of each fault, of ledgers written by hand."""

from __future__ import annotations

from pathlib import Path

from hpcrun.state import files, ledger
from hpcrun.state.layout import RunPaths
from hpcrun.tools.drill.drill import FaultOutcome, outcomes


def _attempt(paths: RunPaths, number: int, restored: int, first: float) -> None:
    paths.attempt(number).directory.mkdir(parents=True)
    ledger.write(paths, ledger.STARTED, number, job_id="1", restart_count=0)
    files.append(paths.attempt(number).session, {"event": "restored", "step": restored})
    files.append(paths.attempt(number).metrics, {"step": restored + 1, "time": first, "loss": 1.0})


def _hurt(paths: RunPaths, number: int, fault: str, time: float) -> None:
    files.append(
        paths.ledger,
        {
            "event": "fault",
            "attempt": number,
            "time": time,
            "fault": fault,
            "rank": 1,
            "node": "n2",
        },
    )


def _end(paths: RunPaths, number: int, kind: str, reached: int, action: str) -> None:
    cause = {"kind": kind, "message": kind}
    ledger.write(paths, ledger.ENDED, number, outcome="failed", cause=cause, reached_step=reached)
    ledger.write(paths, ledger.DECIDED, number, action=action, reason="", exclude=[])


def _restarted(paths: RunPaths) -> None:
    """Write a run whose first attempt lost a rank, and the beginning of its second."""
    _attempt(paths, 1, 0, 10.0)
    _hurt(paths, 1, "kill-rank", 100.0)
    _end(paths, 1, "rank_crash", 17, "restart")
    _attempt(paths, 2, 10, 109.26)


def test_what_each_fault_cost(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    _restarted(paths)
    _hurt(paths, 2, "preempt", 200.0)
    _end(paths, 2, "signal", 30, "requeue")
    # It never got to a step, and the one after it went on.
    paths.attempt(3).directory.mkdir()
    ledger.write(paths, ledger.STARTED, 3)
    _end(paths, 3, "launch", 30, "requeue")
    _attempt(paths, 4, 30, 350.0)
    found = outcomes(paths, ["kill-rank", "preempt", "stop-rank"])
    assert found == [
        FaultOutcome("kill-rank", 1, "n2", 1, "rank_crash", "restart", 9.3, 7, True),
        FaultOutcome("preempt", 1, "n2", 2, "signal", "requeue", 150.0, 0, True),
        FaultOutcome("stop-rank"),
    ]
    assert [one.came_back for one in found] == [True, True, False]


def test_a_run_that_did_not_come_back(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    _attempt(paths, 1, 0, 10.0)
    _hurt(paths, 1, "kill-rank", 100.0)
    _end(paths, 1, "rank_crash", 17, "stop")
    (found,) = outcomes(paths, ["kill-rank"])
    assert (found.came_back, found.action, found.lost_steps) == (False, "stop", None)


def test_steps_that_a_program_did_again(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for number, first, reached in ((1, 1, 17), (2, 11, 40)):
        paths.attempt(number).directory.mkdir(parents=True)
        ledger.write(paths, ledger.STARTED, number)
        files.append(paths.attempt(number).metrics, {"step": first, "time": 100.0 * number})
        steps = {"first_step": first, "reached_step": reached}
        outcome = ("failed", "completed")[number - 1]
        ledger.write(paths, ledger.ENDED, number, outcome=outcome, cause=None, **steps)
    _hurt(paths, 1, "stop-rank", 150.0)
    (found,) = outcomes(paths, ["stop-rank"])
    assert (found.lost_steps, found.seconds, found.came_back) == (7, 50.0, True)


def test_a_run_that_was_never_hurt(tmp_path: Path) -> None:
    assert outcomes(RunPaths(tmp_path), ["preempt"]) == [FaultOutcome("preempt")]


def test_a_program_without_metrics_that_came_to_its_end(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for number in (1, 2):
        ledger.write(paths, ledger.STARTED, number)
    _hurt(paths, 1, "kill-rank", 100.0)
    _end(paths, 1, "rank_crash", 0, "restart")
    ledger.write(paths, ledger.ENDED, 2, outcome="completed", cause=None)
    (found,) = outcomes(paths, ["kill-rank"])
    assert (found.came_back, found.seconds) == (True, None)


def test_a_fault_that_came_too_late(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    ledger.write(paths, ledger.STARTED, 1)
    _hurt(paths, 1, "kill-rank", 100.0)
    ledger.write(paths, ledger.ENDED, 1, outcome="completed", cause=None)
    assert outcomes(paths, ["kill-rank"]) == [FaultOutcome("kill-rank")]


def test_metrics_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    _restarted(paths)
    for path in (paths.attempt(2).metrics, paths.attempt(2).session):
        path.unlink()
        path.symlink_to(path.name)
    (found,) = outcomes(paths, [])
    assert (found.cause, found.seconds, found.lost_steps) == ("rank_crash", None, None)
