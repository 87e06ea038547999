"""A process of an attempt that has been replaced leaves without writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

EXIT_STALE = 76
_INTERVAL = 1.0


class AttemptFence:
    """Looks whether the next attempt has been claimed.

    A process that slept (stopped by a signal, or on a node that had lost its network) finds that
    more than a second has passed since it last looked, and looks before it writes anything.

    Parameters
    ----------
    successor
        The directory whose existence is the next attempt's claim.
    """

    def __init__(self, successor: Path) -> None:
        self._successor = successor
        self._looked = float("-inf")

    def check(self, *, always: bool = False) -> None:
        """End this process at once where the attempt is no longer the run's newest.

        Parameters
        ----------
        always
            Look even where the last look was a moment ago.
        """
        if self.passed(always=always):
            os._exit(EXIT_STALE)

    def passed(self, *, always: bool = False) -> bool:
        """Whether the attempt was seen to be no longer the newest; looks once a second."""
        if not always and time.monotonic() - self._looked < _INTERVAL:
            return False
        if self._successor.exists():
            return True
        self._looked = time.monotonic()
        return False
