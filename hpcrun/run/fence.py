"""A process of an attempt that has been replaced leaves without writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

EXIT_STALE = 76
_INTERVAL = 1.0


class Fence:
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
        now = time.monotonic()
        if not always and now - self._looked < _INTERVAL:
            return
        if self._successor.exists():
            os._exit(EXIT_STALE)
        self._looked = time.monotonic()
