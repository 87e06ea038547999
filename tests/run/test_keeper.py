"""What the batch script's process does when the supervisor ends without the last word.

Slurm's part is a stand-in here; killed supervisors on a real Slurm are in `tests.cluster`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.errors import EXIT_FAILED, EXIT_SAVED
from hpcrun.run import keeper
from hpcrun.run.job.takeover import Takeover
from hpcrun.slurm.queue import JobMark
from hpcrun.state import ledger
from tests.support.place import Place

STARTED: dict[str, Any] = {"job_id": "7_3", "restart_count": 1, "submission": 1}
DECIDED = {"action": "stop", "reason": "", "exclude": []}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts for which a requeue was asked."""
    found: list[int] = []

    def requeue(orphan: Takeover, *, silent: bool) -> bool:
        assert not silent
        found.append(orphan.attempt)
        return True

    for name, value in {
        "SLURM_JOB_ID": "9",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_RESTART_COUNT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Takeover, "requeue", requeue)
    return found


def _begin(place: Place, decided: bool = False, **started: Any) -> None:
    place.submit("true", recovery={})
    place.run.directory.mkdir(parents=True)
    ledger.write(place.run, ledger.STARTED, 1, **{**STARTED, **started})
    if decided:
        ledger.write(place.run, ledger.DECIDED, 1, **DECIDED)


@pytest.mark.parametrize("code", [1, 70, -signal.SIGKILL])
def test_one_that_decided_nothing_is_replaced(place: Place, asked: list[int], code: int) -> None:
    _begin(place)
    assert keeper.replace(place.submission, 3, code) == EXIT_SAVED
    assert asked == [1]


def test_one_that_decided_has_the_last_word(place: Place, asked: list[int]) -> None:
    _begin(place, decided=True)
    assert keeper.replace(place.submission, 3, 5) == 5
    assert asked == []


def test_one_that_was_killed_as_it_carried_its_decision_out(place: Place, asked: list[int]) -> None:
    """Whether the run goes on at all, the orphan's own look at the ledger says."""
    _begin(place, decided=True)
    assert keeper.replace(place.submission, 3, -signal.SIGKILL) == EXIT_SAVED
    assert asked == [1]


@pytest.mark.parametrize(
    ("code", "starts", "cancelled", "again"),
    [
        (-signal.SIGKILL, "1", False, True),
        (-signal.SIGKILL, "10", False, False),
        (-signal.SIGKILL, "1", True, False),
        (1, "1", False, False),
    ],
)
@pytest.mark.parametrize("other", [None, {"restart_count": 0}, {"job_id": "7_4"}])
def test_one_that_claimed_no_attempt(
    place: Place,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    starts: str,
    cancelled: bool,
    again: bool,
    other: dict[str, Any] | None,
) -> None:
    """What is in the ledger is an earlier start's, or another job's; of a kill nobody is told."""
    requeued: list[str] = []

    def requeue(name: str, *, mark: JobMark, between: Callable[[], bool], say: object) -> bool:
        requeued.extend([name] if between() else [])
        return between()

    monkeypatch.setattr(keeper.job, "requeue", requeue)
    monkeypatch.setenv("SLURM_RESTART_COUNT", starts)
    if other is None:
        place.submit("true", recovery={})
        place.run.directory.mkdir(parents=True)
    else:
        _begin(place, **other)
    if cancelled:
        ledger.set_intent(place.run, ledger.CANCELLED)
    expected = EXIT_SAVED if again else code if code > 0 else EXIT_FAILED
    assert keeper.replace(place.submission, 3, code) == expected
    assert (requeued, asked) == (["7_3"] if again else [], [])
