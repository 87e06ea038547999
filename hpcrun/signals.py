"""Names of signals, also of those that have none in Python."""

from __future__ import annotations

import signal


def name(number: int) -> str:
    """``SIGKILL`` of 9; ``signal 41`` of one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
