"""Slurm's clock, by which time limits end jobs: that of a node may be wrong."""

from __future__ import annotations

import re
import time

from hpcrun.slurm import client
from hpcrun.slurm.background import BackgroundCall
from hpcrun.slurm.parse import parse_time

# Seconds after which it is asked again, where it did not answer.
_ASK_EVERY = 60.0
_TOLD = re.compile(r"^Configuration data as of (\S+)")


class SlurmClock:
    """Slurm's time, asked once, in the background; this host's until it answers."""

    def __init__(self) -> None:
        self._ahead: float | None = None  # of the monotonic clock
        self._ask()

    def now(self) -> float:
        """Return the time in seconds since the epoch, to a second."""
        if self._ahead is None and self._call.wait(0):
            self._ahead = self._call.result()
            if self._ahead is None and time.monotonic() > self._asked + _ASK_EVERY:
                self._ask()
        return time.time() if self._ahead is None else time.monotonic() + self._ahead

    def _ask(self) -> None:
        self._asked, self._call = time.monotonic(), BackgroundCall(_ahead)


def _ahead() -> float | None:
    """Return how far Slurm's clock is ahead of the monotonic one here; None without an answer."""
    # Its first line has slurmctld's time, to a second; the times of other answers are this host's.
    asked = time.monotonic()
    told = _TOLD.search(client.answer(["scontrol", "show", "config"]))
    moment = parse_time(told[1]) if told else None
    if moment is None:
        return None
    here, around = time.time() - time.monotonic(), (asked + time.monotonic()) / 2
    ahead = moment + 0.5 - around
    return here if abs(ahead - here) < 2.0 + time.monotonic() - asked else ahead
