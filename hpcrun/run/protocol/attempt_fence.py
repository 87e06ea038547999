"""Fence against stale attempts: a replaced process exits without writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

EXIT_STALE = 76
_INTERVAL = 1.0


class AttemptFence:
    """Checks whether the next attempt has been claimed, at most once a second.

    A process that slept (stopped by a signal, or on a node without network) finds that more than a
    second has passed, and checks before it writes anything. The claim is that the directory
    ``successor`` exists.
    """

    def __init__(self, successor: Path) -> None:
        self._successor = successor
        self._checked = float("-inf")

    def check(self, *, always: bool = False) -> None:
        """Exit at once if the attempt was replaced; ``always`` checks within the second too."""
        if self.passed(always=always):
            os._exit(EXIT_STALE)

    def passed(self, *, always: bool = False) -> bool:
        """Return whether the attempt was seen to be replaced."""
        if not always and time.monotonic() - self._checked < _INTERVAL:
            return False
        if self._successor.exists():
            return True
        self._checked = time.monotonic()
        return False
