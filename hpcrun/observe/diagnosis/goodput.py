"""Goodput: where a run's time went, each second counted once.

Pure: `hpcrun.observe.diagnosis.attempts` reads the files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun.policy import causes, recovery
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import ledger, session_log
from hpcrun.state.ledger import Attempt
from hpcrun.state.session_log import SessionLog


@dataclass
class Goodput:
    """Seconds (in `cost`, hours) of each kind; they sum to the wall time."""

    useful: float = 0.0
    """Steps done for the first time, if the run still has them."""
    replayed: float = 0.0
    """Steps that an earlier attempt had done and lost."""
    lost: float = 0.0
    """Steps done for the first time that were not kept, and that nobody has done again."""
    startup: float = 0.0
    """From the start of an attempt until its ranks could restore."""
    restore: float = 0.0
    """Restoring a checkpoint."""
    save: float = 0.0
    """The training blocked by a save."""
    running: float = 0.0
    """Ranks at work in a program that shows no steps: what of it was useful is not known."""
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
    def share(self) -> float | None:
        """The useful share of the time in which somebody wanted the run to go on; 0 of none.

        None if it is unknown, because the program shows no steps.
        """
        if self.running and not self.useful:
            return None
        wanted = self.wall - self.stopped
        return self.useful / wanted if wanted else 0.0

    def add(self, kind: str, amount: float) -> None:
        """Add to one of the fields."""
        setattr(self, kind, getattr(self, kind) + amount)

    def to_data(self) -> dict[str, float | None]:
        """Return plain data, with the wall time and the useful share of it."""
        parts = {name: round(value, 3) for name, value in vars(self).items()}
        share = None if self.share is None else round(self.share, 4)
        return {"wall": round(self.wall, 3), **parts, "share": share}


# The fields of Goodput, as a person reads them.
WORDS = {
    "useful": "new steps",
    "replayed": "steps done over again",
    "lost": "steps that were lost",
    "startup": "starting",
    "restore": "restoring",
    "save": "saving",
    "running": "running (no step shown)",
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
    is_program: bool = False
    """A script or command: without a session, its logged steps tell how its time was spent."""
    begun: float | None = None
    """When the first step of such a program began; None if nothing tells."""
    alive: float | None = None
    """The time of such a program's last sign of life."""
    stood: float | None = None
    """The time at which it had done the last step that the run still has; None if it has all."""


def summed(spans: Iterable[Span]) -> Goodput:
    """Sum the seconds of each kind."""
    found = Goodput()
    for span in spans:
        found.add(span.kind, span.seconds)
    return found


def first_began(logged: Sequence[tuple[int, float]], restored: int) -> float | None:
    """Return when the first step of an attempt began, judged by the pace of the next ones.

    None if nothing tells. ``logged`` are steps and times of the first lines, in seconds since the
    epoch; ``restored`` are the finished steps that the attempt began with.
    """
    if not logged:
        return None
    step, moment = logged[0]
    paces = sorted(
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.pairwise(logged)
        if after[0] > before[0] and after[1] > before[1]
    )
    if paces:
        return moment - max(0, step - restored) * paces[len(paces) // 2]
    return moment if step - restored <= 1 else None


def repeated_until(points: Sequence[tuple[int, float]], furthest: int) -> float | None:
    """Return when the furthest step of earlier attempts was over again; None if it was not.

    ``points`` are steps and their times. Where not every step has one, the moment lies between the
    last of the repeated steps and the first of the new ones.
    """
    before = next((point for point in reversed(points) if point[0] <= furthest), None)
    after = next((point for point in points if point[0] > furthest), None)
    if before is None or after is None:
        return before and before[1]
    share = (furthest - before[0]) / (after[0] - before[0])
    return before[1] + share * max(0.0, after[1] - before[1])


# Seconds that the processes of a program take to leave, once it has done its work: at least, and at
# most where starting took twice as long, as on a busy node.
LEAVING, MOST_LEAVING = 8.0, 30.0


def worked_until(
    traces: Traces, logged: Sequence[tuple[int, float]], starting: float = 0.0
) -> float | None:
    """Return until when a program that has ended worked; None if nothing tells.

    Of one that ended well that is its end: it may have evaluated or saved in silence. Unless that
    is so near to its last sign of life that its processes only left: then it is that sign.
    ``starting`` are the seconds from its start to its first step.
    """
    log = traces.session
    finished = next((event.time for event in log.of(session_log.FINISHED)), None)
    # The agent says at the end when it saw the last of the program.
    seen = [event.time for event in log.of(session_log.SEEN) if event.step is None]
    if finished is None or not seen:
        return seen[-1] if seen else finished
    if len(logged) < 2:
        return finished
    saves = [event.time for event in log.of(session_log.SAVED)]
    last = max([seen[-1], traces.last or 0.0, *saves])
    leaving = max(LEAVING, min(MOST_LEAVING, starting / 2))
    return min(finished, last) if finished - last < leaving else finished


def standing(
    last: Attempt,
    *,
    restored: int | None,
    reached: int | None,
    kept: int | None,
    saves_unseen: bool,
) -> int | None:
    """Return the last step that a run still has; None if it has all, or if that is not known.

    ``restored``, ``reached`` and ``kept`` are the finished steps with which its newest attempt
    began, that it has reached, and in the newest save. With ``saves_unseen`` the run is known to
    have saved at steps that are not known.
    """
    if last.outcome in causes.GOOD_ENDS:
        return None
    if last.ended is None:
        return None if reached is None else max(reached, restored or 0)
    if kept is None and saves_unseen:
        return None
    return kept or 0


def spans(
    submitted: Mapping[Any, float],
    attempts: Sequence[tuple[Attempt, Callable[[int], Traces]]],
    until: float,
    *,
    over: bool,
    resubmitted: float | None = None,
) -> list[Span]:
    """Divide a run's time into spans, in order and without gaps.

    There are none if no time has passed, or if ranks worked and their session logged nothing.
    ``submitted`` are the times of submissions by number, where known, and ``resubmitted`` when the
    run was submitted again after its last attempt, in seconds since the epoch. Each of the
    ``attempts`` has a function that reads its traces, given the furthest earlier step. An attempt
    that is still running ends at ``until``, now; one without an end of a run that is ``over``, to
    which nothing more is to come, with its last trace.
    """
    found: list[Span] = []
    at: float | None = None
    furthest = 0
    before: Attempt | None = None
    silent = traced = False
    told: list[Traces] = []
    begun = [pair for pair in attempts if isinstance(pair[0].began, (int, float))]
    starts = [float(attempt.started["time"]) for attempt, _ in begun]
    for _, find in begun:
        told.append(find(furthest))
        furthest = max(furthest, told[-1].reached)
    # One attempt that shows no step has not come to its first, where the others show theirs.
    unknown = "running" if all(one.first is None for one in told) else "startup"
    # What no new start mends is found as a program starts.
    kinds = ["startup" if "permanent" in one.cause else unknown for one, _ in begun]
    later_starts = (*starts[1:], until)
    for (attempt, _), traces, kind, began, later in zip(
        begun, told, kinds, starts, later_starts, strict=False
    ):
        ended = attempt.end.get("time") or later
        if attempt.ended is None and over and later == until:
            ended = min(later, max(began, traces.last or began, *traces.session.times))
        logged = bool(traces.session) or traces.last is not None
        traced |= logged
        works = attempt.workers_started is not None and not traces.is_program
        silent |= works and not logged
        at = submitted.get(attempt.submission, began) if at is None else at
        began = max(at, began)
        found += _between(before, attempt, submitted, at, began)
        at = max(began, ended)
        found += _of_attempt(before, attempt, traces, began, at, kind)
        before = attempt
    if at is not None and not over and until > at:
        asked = at if resubmitted is None else min(max(resubmitted, at), until)
        in_place = before is not None and before.action == recovery.RESTART
        kind = "idle" if in_place and resubmitted is None else "queued"
        parts = [("stopped", at, asked), (kind, asked, until)]
        found += (Span(*part, None, _cause(before)) for part in parts if part[2] > part[1])
    return [] if silent and not traced else found


def _cause(attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.outcome in (None, *causes.GOOD_ENDS):
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
    before: Attempt | None,
    attempt: Attempt,
    traces: Traces,
    began: float,
    ended: float,
    unknown: str,
) -> Iterator[Span]:
    """Yield the time of an attempt; its idle end is charged to itself, its start to ``before``."""

    def within(moment: float) -> float:
        return min(max(moment, began), ended)

    restored = next(traces.session.of(session_log.RESTORED), None)
    ready = within(restored.time if restored else traces.first or ended)
    loading = max(began, ready - (restored.seconds("seconds") if restored else 0.0))
    edges = [("startup", began, loading), ("restore", loading, ready)]
    signs = [traces.last or ready, *traces.session.times]
    if traces.is_program and restored is None:
        at_work = within(attempt.workers_started or began)
        if traces.first is None:
            ready = within(ended if attempt.ended is None else traces.alive or ended)
        elif traces.begun is None:
            unknown, ready = "running", within(traces.first)
        else:
            at_work = ready = max(at_work, within(traces.begun))
        ready = max(at_work, ready)
        edges = [("startup", began, at_work), (unknown, at_work, ready)]
        signs = [traces.last or ready, traces.alive or ready]
        signs = [ready] if traces.first is None else signs
    last = ended if attempt.ended is None else max(ready, within(max(signs)))
    new = max(ready, min(last, within(traces.again or ready)))
    stood = last if traces.stood is None else max(new, min(last, traces.stood))
    at = ready
    for start, end in sorted(_saves(traces)):
        start, end = (min(max(moment, at), last) for moment in (start, end))
        edges += [*_steps(at, start, new, stood), ("save", start, end)]
        at = end
    edges += [*_steps(at, last, new, stood), ("idle", last, ended)]
    causes = dict.fromkeys(("idle", "lost"), _cause(attempt))
    causes |= dict.fromkeys(("startup", "restore", "replayed"), _cause(before))
    for kind, start, end in edges:
        if end > start:
            yield Span(kind, start, end, attempt.number, causes.get(kind))


def _saves(traces: Traces) -> Iterator[tuple[float, float]]:
    """Yield from when to when each save blocked the training, which it does at its beginning."""
    for event in traces.session.of(session_log.SAVED, session_log.SAVED_NEARBY):
        start = event.time - event.seconds("seconds", "blocked")
        yield start, start + event.seconds("blocked", "seconds")


def _steps(
    start: float, end: float, new: float, stood: float
) -> Iterator[tuple[str, float, float]]:
    yield "replayed", start, min(end, new)
    yield "useful", max(start, new), min(end, stood)
    yield "lost", max(start, stood), end
