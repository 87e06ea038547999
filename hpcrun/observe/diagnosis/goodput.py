"""Goodput: where a run's time went, each second counted once.

Pure: `hpcrun.observe.diagnosis.attempts` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.policy import recovery
from hpcrun.state import ledger, session_log
from hpcrun.state.ledger import Attempt
from hpcrun.state.session_log import SessionLog


@dataclass
class Goodput:
    """Seconds (in `cost`, hours) of each kind; they sum to the wall time."""

    useful: float = 0.0
    """Steps done for the first time."""
    replayed: float = 0.0
    """Steps that an earlier attempt had done and lost."""
    startup: float = 0.0
    """From the start of an attempt until its ranks could restore."""
    restore: float = 0.0
    """Restoring a checkpoint."""
    save: float = 0.0
    """The training blocked by a save."""
    idle: float = 0.0
    """Nodes held with no rank at work: from the last sign of an attempt until its end was noticed
    and its ranks were gone, and until the next attempt in the same allocation."""
    queued: float = 0.0
    """In the queue: from a submission, or from the end of what was requeued, to the next start."""
    stopped: float = 0.0
    """Given up, until somebody submitted the run again."""

    @property
    def wall(self) -> float:
        return float(sum(vars(self).values()))

    @property
    def allocated(self) -> float:
        """The part during which the run held its nodes."""
        return self.wall - self.queued - self.stopped

    @property
    def share(self) -> float:
        """The useful share of the time in which somebody wanted the run to go on; 0 of none."""
        wanted = self.wall - self.stopped
        return self.useful / wanted if wanted else 0.0

    def add(self, kind: str, amount: float) -> None:
        """Add to one of the fields."""
        setattr(self, kind, getattr(self, kind) + amount)

    def to_data(self) -> dict[str, float]:
        """Return plain data, with the wall time and the useful share of it."""
        parts = {name: round(value, 3) for name, value in vars(self).items()}
        return {"wall": round(self.wall, 3), **parts, "share": round(self.share, 4)}


# The fields of Goodput, as a person reads them.
WORDS = {
    "useful": "new steps",
    "replayed": "steps done over again",
    "startup": "starting",
    "restore": "restoring",
    "save": "saving",
    "idle": "idle in the allocation",
    "queued": "in the queue",
    "stopped": "stopped, until submitted again",
}


@dataclass(frozen=True)
class Span:
    """A stretch of a run's time."""

    kind: str
    """A field of `Goodput`."""
    start: float
    """Seconds since the epoch, as ``end``."""
    end: float
    """The start of the next span."""
    attempt: int | None
    """The attempt's number; between two attempts, the later one's; None after the last."""
    cause: str | None = None
    """The kind of end (of `hpcrun.policy.causes`) that the span is charged to: for an attempt that
    ended badly its idle end, and what came after it until new steps were done. None otherwise."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Traces:
    """The traces of an attempt; times in seconds since the epoch, None if unknown."""

    session: SessionLog = field(default_factory=SessionLog)
    first: float | None = None
    """The time of its first logged step."""
    last: float | None = None
    """The time of its last logged step."""
    again: float | None = None
    """The time at which it had repeated all steps of earlier attempts."""
    reached: int = 0
    """The number of its last logged step."""


def summed(spans: Iterable[Span]) -> Goodput:
    """Sum the seconds of each kind."""
    found = Goodput()
    for span in spans:
        found.add(span.kind, span.seconds)
    return found


def spans(
    submitted: Mapping[Any, float],
    attempts: Sequence[tuple[Attempt, Callable[[int], Traces]]],
    until: float,
    *,
    over: bool,
    resubmitted: float | None = None,
) -> list[Span]:
    """Divide a run's time into spans, in order and without gaps.

    Parameters
    ----------
    submitted
        Number of a submission -> its time in seconds since the epoch, where known.
    attempts
        In order, each with a function that reads its traces, given the furthest earlier step.
    until
        The current time: the end of an attempt that is still running.
    over
        Nothing more is to come after the last attempt; if it has no end, it ended with its last
        trace.
    resubmitted
        When the run was submitted again after its last attempt, in seconds since the epoch.

    Returns
    -------
    list of Span
        Empty if no time has passed, or if ranks worked and none of them logged anything.
    """
    found: list[Span] = []
    at: float | None = None
    furthest = 0
    before: Attempt | None = None
    silent = traced = False
    begun = [pair for pair in attempts if isinstance(pair[0].began, (int, float))]
    starts = [float(attempt.started["time"]) for attempt, _ in begun]
    for (attempt, find), began, later in zip(begun, starts, (*starts[1:], until), strict=False):
        traces = find(furthest)
        ended = attempt.end.get("time") or later
        if attempt.ended is None and over and later == until:
            ended = min(later, max(began, traces.last or began, *traces.session.times))
        logged = bool(traces.session) or traces.last is not None
        traced |= logged
        silent |= attempt.workers_started is not None and not logged
        at = submitted.get(attempt.submission, began) if at is None else at
        began = max(at, began)
        found += _between(before, attempt, submitted, at, began)
        at = max(began, ended)
        found += _of_attempt(before, attempt, traces, began, at)
        furthest = max(furthest, traces.reached)
        before = attempt
    if at is not None and not over and until > at:
        asked = at if resubmitted is None else min(max(resubmitted, at), until)
        in_place = before is not None and before.action == recovery.RESTART
        kind = "idle" if in_place and resubmitted is None else "queued"
        parts = [("stopped", at, asked), (kind, asked, until)]
        found += (Span(*part, None, _cause(before)) for part in parts if part[2] > part[1])
    return [] if silent and not traced else found


def _cause(attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.outcome in (None, "completed"):
        return None
    return str(attempt.kind or attempt.outcome)


def _between(
    before: Attempt | None,
    attempt: Attempt,
    submitted: Mapping[Any, float],
    start: float,
    end: float,
) -> Iterator[Span]:
    """Yield the time between two attempts, or between the first submission and the first."""
    cause, number = _cause(before), attempt.number
    kind = "queued"
    if before is not None:
        again = attempt.submission
        if ledger.same_start(before, attempt):
            kind = "idle"
        elif again != before.submission:
            asked = min(max(submitted.get(again, start), start), end)
            if asked > start:
                yield Span("stopped", start, asked, number, cause)
            start = asked
    if end > start:
        yield Span(kind, start, end, number, cause)


def _of_attempt(
    before: Attempt | None, attempt: Attempt, traces: Traces, began: float, ended: float
) -> Iterator[Span]:
    """Yield the time of an attempt; its idle end is charged to itself, its start to ``before``."""

    def within(moment: float) -> float:
        return min(max(moment, began), ended)

    restored = next(traces.session.of(session_log.RESTORED), None)
    ready = within(restored.time if restored else traces.first or ended)
    loading = max(began, ready - (restored.seconds("seconds") if restored else 0.0))
    signs = [traces.last or ready, *traces.session.times]
    last = ended if attempt.ended is None else max(ready, within(max(signs)))
    new = max(ready, min(last, within(traces.again or ready)))
    edges = [("startup", began, loading), ("restore", loading, ready)]
    at = ready
    for start, end in sorted(_saves(traces)):
        start, end = (min(max(moment, at), last) for moment in (start, end))
        edges += [*_steps(at, start, new), ("save", start, end)]
        at = end
    edges += [*_steps(at, last, new), ("idle", last, ended)]
    causes = {"idle": _cause(attempt)}
    causes |= dict.fromkeys(("startup", "restore", "replayed"), _cause(before))
    for kind, start, end in edges:
        if end > start:
            yield Span(kind, start, end, attempt.number, causes.get(kind))


def _saves(traces: Traces) -> Iterator[tuple[float, float]]:
    """Yield from when to when each save blocked the training, which it does at its beginning."""
    for event in traces.session.of(session_log.SAVED, session_log.SAVED_NEARBY):
        start = event.time - event.seconds("seconds", "blocked")
        yield start, start + event.seconds("blocked", "seconds")


def _steps(start: float, end: float, new: float) -> Iterator[tuple[str, float, float]]:
    yield "replayed", start, min(end, new)
    yield "useful", max(start, new), end
