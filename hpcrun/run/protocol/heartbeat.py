"""Heartbeats and liveness: each end of a channel sends ``alive`` every `INTERVAL`.

An agent whose reports are signs of life sends it only where there was none for `LONGEST`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any

from hpcrun.errors import HpcrunError

# Seconds between two of them, and between two reports of an agent.
INTERVAL = 2.0
# Seconds between two signs of life; reports come up to 0.2 seconds late.
LONGEST = 1.25 * INTERVAL
# Seconds of silence that mean a power loss, which sends no last word.
SILENCE = 10.0
# The same where the peer's kernel has acknowledged nothing either. A kernel does so for a process
# that is stopped, or starved of processors; this is time for four retransmissions.
UNACKNOWLEDGED = 4.0

# Seconds after such a time within which what others did is put down to it.
_JUST_NOW = 30.0

ALIVE: dict[str, Any] = {"type": "alive"}


class Heartbeat:
    """Calls ``send(ALIVE)`` every `INTERVAL` from a thread, until it is stopped.

    ``quiet`` returns for how many seconds nothing else was sent: it is called after `LONGEST` then.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], object], quiet: Callable[[], float] = lambda: inf
    ) -> None:
        self._send, self._quiet = send, quiet
        self._stopped = threading.Event()
        self._beaten = time.monotonic()
        # When this process was found not to have run, and for how long.
        self._woke, self._gap = self._beaten, 0.0
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns once no heartbeat is on its way."""
        self._stopped.set()
        self._thread.join(timeout=15)

    def check(self) -> None:
        """Raise HpcrunError if this process did not run for so long that others gave it up."""
        now = time.monotonic()
        gap = now - self._beaten
        if gap <= SILENCE and now - self._woke <= _JUST_NOW:
            gap = self._gap
        if gap > SILENCE:
            raise HpcrunError(
                f"the supervisor did not run for {gap:.0f} s (it was stopped, or its node was "
                "suspended), and its agents left"
            )

    def _beat(self) -> None:
        pause = INTERVAL
        while not self._stopped.wait(pause):
            now = time.monotonic()
            if now - self._beaten > SILENCE:
                self._woke, self._gap = now, now - self._beaten
            self._beaten = now
            pause = LONGEST - self._quiet()
            if pause <= 0:
                self._send(ALIVE)
                pause = INTERVAL


class PeerLiveness:
    """Time of the last sign of life of a peer.

    Time in which this process itself did not run (a suspended machine) does not count.
    """

    def __init__(self) -> None:
        self._checked = self._last = time.monotonic()

    def heard(self) -> None:
        self._last = time.monotonic()

    def silent(self, unacknowledged: Callable[[], float] = lambda: 0.0) -> bool:
        """Check for `SILENCE` seconds without a sign of life; to be called every second.

        `UNACKNOWLEDGED` seconds are enough where its kernel gave none either:
        `hpcrun.run.protocol.channel.Channel.unacknowledged`.
        """
        now = time.monotonic()
        if now - self._checked > INTERVAL:
            self._last = now
        self._checked = now
        quiet = now - self._last
        if quiet <= UNACKNOWLEDGED:
            return False
        return quiet > SILENCE or unacknowledged() > UNACKNOWLEDGED
