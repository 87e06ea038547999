"""Heartbeats: both ends of a channel say every two seconds that they are there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

INTERVAL = 2.0
# A power loss is silence: nobody sends a last word.
SILENCE = 10.0

ALIVE: dict[str, Any] = {"type": "alive"}


class Heartbeat:
    """Calls ``send(ALIVE)`` every two seconds from a thread, until it is stopped."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more; returns once none is on its way."""
        self._over.set()
        self._thread.join(timeout=15)

    def _beat(self) -> None:
        while not self._over.wait(INTERVAL):
            self._send(ALIVE)


class PeerLiveness:
    """When somebody was last heard.

    Time in which this process itself did not run (a suspended machine) is not held against others.
    """

    def __init__(self) -> None:
        self._looked = self._last = time.monotonic()

    def heard(self) -> None:
        """There was a sign of life now."""
        self._last = time.monotonic()

    def silent(self) -> bool:
        """Whether there was none for `SILENCE` seconds; to be asked at least every second."""
        now = time.monotonic()
        if now - self._looked > INTERVAL:
            self._last = now
        self._looked = now
        return now - self._last > SILENCE
