"""Fence against stale attempts: a replaced process exits without writing."""

from __future__ import annotations

import os
import time

from hpcrun.state.layout import AttemptPaths

EXIT_STALE = 76


class AttemptFence:
    """Checks whether a later attempt has been claimed, at most once in ``every`` seconds.

    A process that slept (stopped by a signal, or on a node without network) finds that more time
    has passed, and checks before it writes anything. The claim is a directory beside the attempt's
    own.
    """

    def __init__(self, attempt: AttemptPaths, every: float = 1.0) -> None:
        self._attempt, self._every = attempt, every
        self._checked = float("-inf")

    def check(self, *, always: bool = False) -> None:
        """Exit at once if the attempt was replaced; ``always`` checks within the second too."""
        if self.passed(always=always):
            os._exit(EXIT_STALE)

    def passed(self, *, always: bool = False) -> bool:
        """Return whether the attempt was seen to be replaced."""
        if not always and time.monotonic() - self._checked < self._every:
            return False
        if self._attempt.has_successor:
            return True
        self._checked = time.monotonic()
        return False
