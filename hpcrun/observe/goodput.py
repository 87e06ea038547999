"""Where a run's time went, from its first submission to its end: to the second, and nothing twice.

Pure: `hpcrun.observe.why` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpcrun.ledger import Attempt


@dataclass
class Goodput:
    """Seconds; they add up to the wall time.

    Attributes
    ----------
    useful
        Steps that no earlier attempt had done.
    replayed
        Steps that one had, and had lost.
    startup
        From the start of an attempt until its ranks could restore.
    restore
        Restoring.
    save
        The training standing still for a save.
    waiting
        Nothing of the run at work: in the queue, between attempts, and from the last sign of an
        attempt until its end was noticed and its ranks were gone.
    """

    useful: float = 0.0
    replayed: float = 0.0
    startup: float = 0.0
    restore: float = 0.0
    save: float = 0.0
    waiting: float = 0.0

    @property
    def wall(self) -> float:
        """All of it."""
        return float(sum(getattr(self, each.name) for each in fields(self)))

    def add(self, other: Goodput) -> None:
        """Take in what another time went to."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def to_data(self) -> dict[str, float]:
        """Plain data, with the wall time and the useful share of it."""
        wall = self.wall
        parts = {name: round(value, 3) for name, value in asdict(self).items()}
        share = round(self.useful / wall, 4) if wall else 0.0
        return {"wall": round(wall, 3), **parts, "share": share}


@dataclass(frozen=True)
class Traces:
    """What an attempt left; times in seconds since the epoch, None where there is none.

    Attributes
    ----------
    session
        The lines of its session.
    first, last
        Its first and last logged step.
    again
        The last step that an earlier attempt had done.
    reached
        The number of the last.
    """

    session: Sequence[Mapping[str, Any]] = ()
    first: float | None = None
    last: float | None = None
    again: float | None = None
    reached: int = 0


def of_run(
    submitted: float | None,
    attempts: Iterable[tuple[Attempt, Callable[[int], Traces]]],
    until: float,
    *,
    over: bool,
) -> Goodput | None:
    """Where the time of a run went.

    Parameters
    ----------
    submitted
        When it was submitted first, in seconds since the epoch; None where that is not known.
    attempts
        In their order, each with what finds its traces, given how many steps earlier ones did.
    until
        Now: the end of an attempt that goes on.
    over
        The run waits for nothing more after its last attempt.

    Returns
    -------
    Goodput or None
        None where no time has passed, or ranks worked and none of them ever said a word: the
        program does not tell.
    """
    found = Goodput()
    at, furthest = submitted, 0
    silent = tells = False
    for attempt, find in attempts:
        began = attempt.started.get("time")
        if not isinstance(began, (int, float)):
            continue
        ended = (attempt.ended or {}).get("time") or until
        traces = find(furthest)
        says = bool(traces.session) or traces.last is not None
        tells |= says
        silent |= attempt.workers_started is not None and not says
        at = began if at is None else at
        began = max(at, began)
        found.waiting += began - at
        at = max(began, ended)
        found.add(_of_attempt(attempt, traces, began, at))
        furthest = max(furthest, traces.reached)
    if at is not None and not over:
        found.waiting += max(0.0, until - at)
    if silent and not tells:
        return None
    return found if found.wall > 0 else None


def _of_attempt(attempt: Attempt, traces: Traces, began: float, ended: float) -> Goodput:
    def within(moment: float) -> float:
        return min(max(moment, began), ended)

    restored = next((line for line in traces.session if line.get("event") == "restored"), None)
    ready = within(_time(restored) if restored else traces.first or ended)
    restore = min(_seconds(restored, "seconds"), ready - began)
    signs = [traces.last or ready, *(_time(line) for line in traces.session)]
    last = ended if attempt.ended is None else max(ready, within(max(signs)))
    new = max(ready, min(last, within(traces.again or ready)))
    saves = [
        (_time(line), _seconds(line, "blocked", "seconds"))
        for line in traces.session
        if line.get("event") in ("saved", "saved_nearby")
    ]
    replaying = min(new - ready, sum(length for moment, length in saves if moment <= new))
    getting_on = min(last - new, sum(length for moment, length in saves if moment > new))
    return Goodput(
        useful=last - new - getting_on,
        replayed=new - ready - replaying,
        startup=ready - began - restore,
        restore=restore,
        save=replaying + getting_on,
        waiting=ended - last,
    )


def _time(line: Mapping[str, Any]) -> float:
    return _seconds(line, "time")


def _seconds(line: Mapping[str, Any] | None, *names: str) -> float:
    for name in names:
        value = (line or {}).get(name)
        if isinstance(value, (int, float)):
            return max(0.0, float(value))
    return 0.0
