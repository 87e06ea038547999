"""Where a run's time went, from its first submission to its end: to the second, and nothing twice.

Pure: `hpcrun.observe.diagnosis.attempts` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hpcrun.policy import recovery
from hpcrun.state import ledger
from hpcrun.state.ledger import Attempt


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
    idle
        In the allocation with nothing of the run at work: from the last sign of an attempt until
        its end was noticed and its ranks were gone, and until the next one in the same allocation.
    queued
        In the queue: from a submission, or from the end of what was requeued, to the next start.
    stopped
        Given up, until somebody submitted it again.
    """

    useful: float = 0.0
    replayed: float = 0.0
    startup: float = 0.0
    restore: float = 0.0
    save: float = 0.0
    idle: float = 0.0
    queued: float = 0.0
    stopped: float = 0.0

    @property
    def wall(self) -> float:
        """All of it."""
        return float(sum(getattr(self, each.name) for each in fields(self)))

    @property
    def allocated(self) -> float:
        """What of it the run held its nodes."""
        return self.wall - self.queued - self.stopped

    @property
    def share(self) -> float:
        """The useful part of the time in which somebody wanted the run to go on; 0 of none."""
        wanted = self.wall - self.stopped
        return self.useful / wanted if wanted else 0.0

    def add(self, other: Goodput) -> None:
        """Take in what another time went to."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def to_data(self) -> dict[str, float]:
        """Plain data, with the wall time and the useful share of it."""
        parts = {name: round(value, 3) for name, value in asdict(self).items()}
        return {"wall": round(self.wall, 3), **parts, "share": round(self.share, 4)}


# Kinds of time, as a person reads them.
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
    """A stretch of a run's time.

    Attributes
    ----------
    kind
        A field of `Goodput`.
    start, end
        Seconds since the epoch; the next one's start is this one's end.
    attempt
        The attempt's number; between two, that of the later one; None after the last.
    cause
        The kind of end (of `hpcrun.policy.causes`) that it has to be charged to: of an attempt that
        ended badly its idle end, and what came after it until new steps were done. None otherwise.
    """

    kind: str
    start: float
    end: float
    attempt: int | None
    cause: str | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start


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


def summed(spans: Iterable[Span]) -> Goodput:
    """The seconds of each kind."""
    found = Goodput()
    for span in spans:
        setattr(found, span.kind, getattr(found, span.kind) + span.seconds)
    return found


def spans(
    submitted: Mapping[Any, float],
    attempts: Sequence[tuple[Attempt, Callable[[int], Traces]]],
    until: float,
    *,
    over: bool,
    resubmitted: float | None = None,
) -> list[Span]:
    """What a run did when, without gaps, in order.

    Parameters
    ----------
    submitted
        Number of a submission -> when that was, in seconds since the epoch, where known.
    attempts
        In their order, each with what finds its traces, given how many steps earlier ones did.
    until
        Now: the end of an attempt that goes on.
    over
        The run waits for nothing more after its last attempt; one without an end ended with its
        last sign then.
    resubmitted
        When it was submitted again after that, in seconds since the epoch; None where it was not.

    Returns
    -------
    list of Span
        Empty where no time has passed, or ranks worked and none of them ever said a word: the
        program does not tell.
    """
    found: list[Span] = []
    at: float | None = None
    furthest = 0
    before: Attempt | None = None
    silent = tells = False
    begun = [pair for pair in attempts if isinstance(pair[0].started.get("time"), (int, float))]
    starts = [float(attempt.started["time"]) for attempt, _ in begun]
    for (attempt, find), began, later in zip(begun, starts, (*starts[1:], until), strict=False):
        traces = find(furthest)
        ended = (attempt.ended or {}).get("time") or later
        if attempt.ended is None and over and later == until:
            ended = min(later, max(began, traces.last or began, *map(_time, traces.session)))
        says = bool(traces.session) or traces.last is not None
        tells |= says
        silent |= attempt.workers_started is not None and not says
        at = submitted.get(attempt.started.get("submission"), began) if at is None else at
        began = max(at, began)
        cause = _cause(before)
        found += _between(before, attempt, submitted, at, began)
        at = max(began, ended)
        own = _of_attempt(attempt, traces, began, at)
        found += (_charged(span, cause, _cause(attempt)) for span in own)
        furthest = max(furthest, traces.reached)
        before = attempt
    if at is not None and not over and until > at:
        asked = at if resubmitted is None else min(max(resubmitted, at), until)
        stays = resubmitted is None and _stays(before)
        parts = [("stopped", at, asked), ("idle" if stays else "queued", asked, until)]
        found += (Span(*part, None, _cause(before)) for part in parts if part[2] > part[1])
    return [] if silent and not tells else found


def _charged(span: Span, before: str | None, own: str | None) -> Span:
    if span.kind in ("startup", "restore", "replayed"):
        return replace(span, cause=before)
    return replace(span, cause=own) if span.kind == "idle" else span


def _cause(attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.outcome in (None, "completed"):
        return None
    return str((attempt.cause or {}).get("kind") or attempt.outcome)


def _stays(attempt: Attempt | None) -> bool:
    """Whether the next attempt is to begin in the same allocation."""
    return attempt is not None and (attempt.decided or {}).get("action") == recovery.RESTART


def _between(
    before: Attempt | None,
    attempt: Attempt,
    submitted: Mapping[Any, float],
    start: float,
    end: float,
) -> Iterator[Span]:
    cause, number = _cause(before), attempt.number
    if before is not None and ledger.same_start(before, attempt):
        if end > start:
            yield Span("idle", start, end, number, cause)
        return
    again = attempt.started.get("submission")
    if before is not None and again != before.started.get("submission"):
        asked = min(max(submitted.get(again, start), start), end)
        if asked > start:
            yield Span("stopped", start, asked, number, cause)
        start = asked
    if end > start:
        yield Span("queued", start, end, number, cause)


def _of_attempt(attempt: Attempt, traces: Traces, began: float, ended: float) -> list[Span]:
    def within(moment: float) -> float:
        return min(max(moment, began), ended)

    restored = next((line for line in traces.session if line.get("event") == "restored"), None)
    ready = within(_time(restored) if restored else traces.first or ended)
    loading = max(began, ready - _seconds(restored, "seconds"))
    signs = [traces.last or ready, *(_time(line) for line in traces.session)]
    last = ended if attempt.ended is None else max(ready, within(max(signs)))
    new = max(ready, min(last, within(traces.again or ready)))
    edges = [("startup", began, loading), ("restore", loading, ready)]
    at = ready
    for start, end in sorted(_saves(traces)):
        start, end = (min(max(moment, at), last) for moment in (start, end))
        edges += [*_steps(at, start, new), ("save", start, end)]
        at = end
    edges += [*_steps(at, last, new), ("idle", last, ended)]
    return [Span(kind, start, end, attempt.number) for kind, start, end in edges if end > start]


def _saves(traces: Traces) -> Iterator[tuple[float, float]]:
    """From when to when the training stood still: at the beginning of a save."""
    for line in traces.session:
        if line.get("event") in ("saved", "saved_nearby"):
            start = _time(line) - _seconds(line, "seconds", "blocked")
            yield start, start + _seconds(line, "blocked", "seconds")


def _steps(start: float, end: float, new: float) -> Iterator[tuple[str, float, float]]:
    yield "replayed", start, min(end, new)
    yield "useful", max(start, new), end


def _time(line: Mapping[str, Any]) -> float:
    return _seconds(line, "time")


def _seconds(line: Mapping[str, Any] | None, *names: str) -> float:
    for name in names:
        value = (line or {}).get(name)
        if isinstance(value, (int, float)):
            return max(0.0, float(value))
    return 0.0
