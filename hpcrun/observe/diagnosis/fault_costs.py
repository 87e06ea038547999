"""The faults that were injected into a run, and what each of them cost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcrun.fields import TIME
from hpcrun.policy import causes
from hpcrun.policy.recovery import began_with
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.ledger import Attempt


@dataclass(frozen=True)
class FaultOutcome:
    """One fault and what followed; None where nothing did."""

    fault: str
    rank: int | None = None
    node: str | None = None
    attempt: int | None = None
    """The attempt that it hit; None, as all below, if the run ended before."""
    cause: str | None = None
    """The recorded cause, a kind of `hpcrun.policy.causes`."""
    action: str | None = None
    """``restart``, ``requeue`` or ``stop``."""
    seconds: float | None = None
    """From the fault to the first logged step after it."""
    lost_steps: int | None = None
    """Steps that were done again."""
    came_back: bool = False
    """True if the run made steps, or completed, after it."""

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def outcomes(paths: RunPaths, faults: Sequence[str]) -> list[FaultOutcome]:
    """Return what followed each of the requested faults, in their order."""
    attempts = ledger.read(paths)
    injected = ledger.faults(paths)
    found = [_outcome(paths, record, attempts) for record in injected]
    return [*found, *map(FaultOutcome, faults[len(injected) :])]


def _outcome(paths: RunPaths, fault: dict[str, Any], attempts: Sequence[Attempt]) -> FaultOutcome:
    number = int(fault["attempt"])
    hurt = next(attempt for attempt in attempts if attempt.number == number)
    if hurt.outcome == causes.COMPLETED:
        # It came too late to do any harm.
        return FaultOutcome(str(fault["fault"]))
    later = [paths.attempt(attempt.number) for attempt in attempts if attempt.number > number]
    times = (time for each in later if (time := _first_logged(each)) is not None)
    first = next(times, None)
    # Of a program that saves by itself, the first step that it logs tells.
    known = dict(zip((one.number for one in attempts), began_with(attempts), strict=True))
    steps = (
        known[each.number] if (step := session_log.read_any(each).restored_step) is None else step
        for each in later
    )
    restored = next((step for step in steps if step is not None), None)
    reached = hurt.end.get("reached_step")
    return FaultOutcome(
        fault=str(fault["fault"]),
        rank=fault.get("rank"),
        node=fault.get("node"),
        attempt=number,
        cause=hurt.kind,
        action=hurt.action,
        seconds=None if first is None else round(first - float(fault["time"]), 1),
        came_back=first is not None
        or any(attempt.outcome == causes.COMPLETED for attempt in attempts),
        lost_steps=None if reached is None or restored is None else max(0, reached - restored),
    )


def _first_logged(attempt: AttemptPaths) -> float | None:
    """Return the time of an attempt's first line of metrics; None without one."""
    with contextlib.suppress(OSError):
        for line in files.read_lines(attempt.metrics):
            if TIME.accepts(line.get("time")):
                return float(line["time"])
    return None
