"""Which ends a person is told of, as a table over ends and decisions."""

from __future__ import annotations

import pytest

from hpcrun.policy import causes, notifications, recovery
from hpcrun.state.ledger import Attempt

TABLE = {
    "completed": (causes.COMPLETED, None, recovery.NOTHING, False, notifications.FINISHED),
    "a crash, tried again": (causes.FAILED, causes.RANK_CRASH, recovery.REQUEUE, True, None),
    "crashes, given up": (
        *(causes.FAILED, causes.RANK_CRASH, recovery.STOP, False, notifications.FAILED),
    ),
    "its own time limits, given up": (
        *(causes.STOPPED, causes.TIME_LIMIT, recovery.STOP, False, notifications.FAILED),
    ),
    "lost nodes, given up": (
        *(causes.FAILED, causes.NODE_FAILURE, recovery.STOP, False, notifications.NEEDS_PERSON),
    ),
    "Slurm did not requeue it": (
        *(causes.STOPPED, causes.PREEMPTED, recovery.REQUEUE, False, notifications.NEEDS_PERSON),
    ),
    "Slurm had requeued it": (causes.STOPPED, causes.REQUEUED, recovery.NOTHING, False, None),
    "cancelled": (causes.CANCELLED, causes.CANCELLED, recovery.NOTHING, False, None),
}


@pytest.mark.parametrize("case", TABLE)
def test_events(case: str) -> None:
    outcome, kind, action, goes_on, expected = TABLE[case]
    cause = {"kind": kind, "message": ""} if kind else None
    ended = {"outcome": outcome, "cause": cause}
    last = Attempt(1, ended=ended, decided={"action": action})
    assert notifications.event(last, goes_on=goes_on) == expected


def test_an_attempt_without_an_end_is_none() -> None:
    assert notifications.event(Attempt(1), goes_on=False) is None
