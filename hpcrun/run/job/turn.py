"""The protocol of what the supervisor's loop calls on each of its turns."""

from __future__ import annotations

from typing import Protocol


class EachTurn(Protocol):
    """A part of the supervisor with something to do while an attempt's ranks run.

    The loop turns several times a second; `hpcrun.run.job.attempt.RunningAttempt` lists the parts
    and their order. A part that needs longer intervals keeps the time itself.
    """

    def turn(self) -> None:
        """Do what is due. To end the attempt, raise: the exception carries the reason."""
