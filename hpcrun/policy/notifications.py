"""The ends of runs that a person is notified of."""

from __future__ import annotations

from hpcrun.policy import causes, recovery
from hpcrun.state.ledger import Attempt
from hpcrun.state.spec.notify_block import FAILED, FINISHED, NEEDS_PERSON

__all__ = ["FAILED", "FINISHED", "NEEDS_PERSON", "event"]


def event(last: Attempt, *, goes_on: bool) -> str | None:
    """Decide the event that the end of an attempt is.

    Parameters
    ----------
    goes_on
        It will be started again by itself.

    Returns
    -------
    str or None
        ``finished``; ``failed``, where it stops for what it did itself; ``needs_person``, where it
        stops for what it could not help, or was to be started again and is not. None while it goes
        on, and where a person has ended it.
    """
    if last.outcome == causes.COMPLETED:
        return FINISHED
    action = last.action
    if last.outcome in (None, causes.CANCELLED) or goes_on:
        return None
    if action == recovery.STOP:
        return FAILED if last.kind in causes.OWN else NEEDS_PERSON
    return NEEDS_PERSON if action in recovery.GOES_ON else None
