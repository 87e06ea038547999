"""The time before its limit at which a run is asked to stop."""

from __future__ import annotations

from typing import Any

from hpcrun.fields import NUMBER
from hpcrun.state import files, session_log
from hpcrun.state.layout import RunPaths

UNMEASURED = 60.0
# Seconds within which an attempt has begun to train: with less time left, none is started.
TO_START = 30.0
_MARGIN = 20.0
_LEAST = 30.0


def seconds(
    limit: float,
    *,
    asked: float | None = None,
    save: float | None = None,
    step: float = 0.0,
) -> float:
    """Return the lead time; all times are in seconds.

    It is twice the longest save and three steps, of which up to two pass before all ranks have
    agreed, with a margin for leaving; before a save was measured a minute, or a quarter of a limit
    shorter than four. What ``recovery.stop_before`` asked for takes precedence.
    """
    if asked is not None:
        return asked
    if save is None:
        return min(UNMEASURED, limit / 4) + 3 * step
    return max(_LEAST, 2 * save + 3 * step + _MARGIN)


def measure(run: RunPaths) -> tuple[float | None, float]:
    """Measure a run's attempts so far.

    Returns the longest save (None before the first) and the last step, in seconds.
    """
    attempts = run.attempts()
    saves = [
        event.seconds("seconds")
        for attempt in attempts
        for event in session_log.read_any(attempt).of(session_log.SAVED)
        if "seconds" in event.record
    ]
    last = (files.last_line(attempts[-1].metrics) if attempts else None) or {}
    step: Any = last.get("step_seconds")
    return max(saves, default=None), float(step) if NUMBER.accepts(step) else 0.0


def leaves_enough(limit: float, lead: float) -> bool:
    """Check that a run with such a lead has time to train before it has to stop."""
    return lead <= limit / 2
