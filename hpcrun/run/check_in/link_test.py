"""A node's part in the measurement of links: it listens, or measures the way to another node."""

from __future__ import annotations

from typing import Any

from hpcrun.run.check_in import pair_link
from hpcrun.run.check_in.pair_link import PairListener
from hpcrun.run.node import network
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.job_secret import JobSecret

# Seconds of each direction: the first time (some MB on a fast fabric); again, so that a processor
# that had something else to do for a moment does not count; and at most.
SECONDS, LONGER, MOST = 0.02, 0.25, 1.0


class LinkTest:
    """Answers the supervisor's questions about the link of this node."""

    QUESTIONS = frozenset({"listen", "measure", "listened"})

    def __init__(self, secret: JobSecret) -> None:
        self._secret = secret
        self._address, self._seconds = "", SECONDS
        self._listener: PairListener | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a question of `QUESTIONS`; what goes wrong is an answer too."""
        kind, number = message["type"], {"number": message.get("number")}
        if kind == "listened":
            self.close()
            return None
        listens = kind == "listen"
        done = {"type": "listening" if listens else "measured", **number}
        try:
            return {**done, **(self._listen(message) if listens else self._measure(message))}
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else None
            return {**done, "error": words or str(error)}

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _listen(self, message: dict[str, Any]) -> dict[str, Any]:
        self.close()
        interface = str(message["interface"])
        self._seconds = min(MOST, max(SECONDS, float(message["seconds"])))
        self._address = network.address(interface) or ""
        if not self._address:
            raise OSError(f"{interface} has no address")
        self._listener = PairListener(self._address, self._secret, self._seconds)
        return {"address": self._address, "port": self._listener.port}

    def _measure(self, message: dict[str, Any]) -> dict[str, Any]:
        if not self._address:
            raise OSError("it has no address to measure from")
        peer = messages.ip_address(message["address"]), int(message["port"])
        speed = pair_link.measure(peer, self._address, self._secret, self._seconds)
        return {"sends": speed.sends, "receives": speed.receives, "latency": speed.latency}
