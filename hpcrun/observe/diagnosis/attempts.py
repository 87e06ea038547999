"""The attempts of runs: how each ended, what it lost and what followed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from hpcrun import activity, shared_look
from hpcrun.errors import HpcrunError
from hpcrun.fields import TIME, WHOLE
from hpcrun.observe.diagnosis import goodput
from hpcrun.observe.diagnosis.goodput import Goodput, Span, Traces
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state, slurm_cache
from hpcrun.observe.status.status import Ask, Observed, RunStatus, observe
from hpcrun.policy import causes, next_attempt
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.slurm import pending_reason
from hpcrun.state import (
    files,
    history,
    journal,
    metrics_file,
    permissions,
    session_log,
    submission_facts,
)
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import RunPlan
from hpcrun.text import Say

CANCELLED = "cancelled"
NO_END = "no_end"

# Events of a session that are reported: saves that failed or were left out, checkpoints set aside,
# a pattern that took too long.
REPORTED = ("save_failed", "save_skipped", "quarantined", "passed_over", "pattern_dropped")

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NODE = "\0"
_WHERE_ANY = ("fabric", "health", "kept")
# Steps after the first one that tell how long a step takes.
_MOST_PACES = 9
# A time before any step.
_BEFORE = 0.0


@dataclass(frozen=True)
class AttemptStory:
    """One attempt: how far it came, and what it lost; None where that is unknown."""

    attempt: Attempt
    restored: int | None
    """The finished optimizer steps that it began with."""
    reached: int | None
    """The finished optimizer steps at its end, or so far."""
    kept: int | None
    """The finished optimizer steps in its newest checkpoint at its end."""
    events: tuple[Mapping[str, Any], ...]
    """The `REPORTED` events of its session."""
    replayed: int
    """Steps that an earlier attempt had done already."""
    read_from: Mapping[str, Any] | None = None
    """The source of the progress of a program without a session, as its agent recorded it."""
    first: int | None = None
    """The first step that such a program logged."""
    other_unit: str | None = None
    """In what it counted its steps, where that is not what later attempts count: they are unknown
    here."""

    @property
    def ended_badly(self) -> bool:
        return self.attempt.outcome not in (None, *causes.GOOD_ENDS)

    @property
    def kind(self) -> str:
        """The kind of its cause, of `hpcrun.policy.causes`."""
        return str(self.attempt.kind or "unknown")

    @property
    def message(self) -> str:
        """The message of its cause, on one line."""
        return one_line(self.attempt.cause.get("message") or self.attempt.outcome).rstrip(".")

    @property
    def lost(self) -> int | None:
        """Steps beyond the newest checkpoint; None if unknown."""
        if not self.ended_badly or self.reached is None or self.kept is None:
            return None
        if self.restored is None and self.first is None:
            # A program of which no step is read: what it reached is what its saves are called.
            return None
        return max(0, self.reached - self.kept)

    def to_data(self) -> dict[str, Any]:
        """Return plain data; times are seconds since the epoch."""
        found = self.attempt
        return {
            "attempt": found.number,
            **{name: getattr(found, name) for name in ("job_id", "nodes", "spare_nodes", "notice")},
            "started": found.began,
            "ended": found.end.get("time"),
            "outcome": found.outcome,
            "cause": found.cause or None,
            "stopping": _without_head(found.stopping),
            "restored_step": self.restored,
            "reached_step": self.reached,
            "checkpoint_step": self.kept,
            "lost_steps": self.lost,
            "replayed_steps": self.replayed,
            "decided": _without_head(found.decided),
            "straggler": _without_head(found.straggler),
            **{name: _without_head(getattr(found, name)) for name in ("resume", "began_over")},
            **{name: _without_head(one) for name in _WHERE_ANY if (one := getattr(found, name))},
            "micro_batch": found.started.get("micro_batch"),
            "events": list(self.events),
            **({"bad_step": bad} if (bad := found.end.get("bad_step")) else {}),
            **({"roles": [_without_head(one) for one in found.roles]} if found.roles else {}),
        }


@dataclass(frozen=True)
class RunStory:
    """One run: its state, and its attempts in order."""

    selected: Selected
    status: RunStatus
    attempts: tuple[AttemptStory, ...] = ()

    @property
    def user(self) -> str:
        """The name of the user whose submission it is."""
        uid = permissions.owner(self.selected.planned.paths.directory)
        return "unknown" if uid is None else permissions.user_name(uid)

    @property
    def bad(self) -> AttemptStory | None:
        """The newest attempt that ended without completing the run."""
        return next((one for one in reversed(self.attempts) if one.ended_badly), None)

    @property
    def replayed(self) -> int:
        """Steps that were done more than once, over all attempts."""
        return sum(one.replayed for one in self.attempts)

    @property
    def kind(self) -> str | None:
        """The kind of problem that keeps the run from its completion.

        A kind of `hpcrun.policy.causes`; `NO_END` if the newest attempt recorded no end and its job
        is over; the run's state if there is no attempt; None if nothing is wrong.
        """
        status = self.status
        if status.state in run_state.GOOD_ENDS:
            return None
        if status.state == run_state.CANCELLED:
            return CANCELLED
        settled = status.over or status.state == run_state.UNKNOWN
        if self.attempts and self.attempts[-1].attempt.ended is None and settled:
            return NO_END
        if self.bad is not None:
            return self.bad.kind
        return status.state if settled else None

    @property
    def message(self) -> str:
        """The same in words."""
        bad = self.bad
        if bad is not None and self.kind == bad.kind:
            return bad.message
        return one_line(self.status.reason or self.status.state)

    @property
    def grown(self) -> list[dict[str, Any]]:
        """The amounts that its job asked for as memory or time was too little, by attempt."""
        return [
            {"attempt": one.attempt.number, **{key: grow[key] for key in ("key", "was", "now")}}
            for one in self.attempts
            if (grow := next_attempt.growth(one.attempt))
        ]

    @cached_property
    def tracker_problems(self) -> dict[str, str]:
        """Why metrics of the run are not sent to trackers, by the tracker's name."""
        found: dict[str, str] = {}
        for name in self.selected.run.trackers:
            try:
                text = files.read_bytes(self.selected.paths.tracker_problem(name))
                found[name] = one_line(text.decode(errors="replace"))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, HpcrunError) as error:
                found[name] = one_line(error)
        return found

    def plan_of(self, attempt: int | None) -> RunPlan:
        """Return an attempt's plan; for None, or if it cannot be read, the newest."""
        newest = self.selected.run
        found = next((one.attempt for one in self.attempts if one.attempt.number == attempt), None)
        number = found.submission if found else None
        if number is None or number == self.selected.planned.paths.number:
            return newest
        plan = history.readable_plan(self.selected.experiment.submission(number))
        runs = plan.runs if plan else ()
        return next((one for one in runs if one.number == newest.number), newest)

    def spans(self, now: float) -> list[Span]:
        """Divide the run's time by `goodput.spans`; empty if no attempt logged anything."""
        experiment, paths = self.selected.experiment, self.selected.paths
        attempts = [one.attempt for one in self.attempts]
        submitted = {
            number: float(when)
            for number in {attempt.submission for attempt in attempts}
            if number is not None
            and (when := submission_facts.describe(experiment.submission(number)).get("time"))
        }
        is_program = self.selected.run.entry.kind != "function"
        stands = self._standing()
        pairs = [
            (
                one.attempt,
                partial(
                    traces,
                    paths.attempt(one.attempt.number),
                    one.attempt,
                    *(one.restored or 0, one.reached or 0, is_program, stands),
                ),
            )
            for one in self.attempts
        ]
        return self._divide(submitted, pairs, now)

    def held(self, now: float) -> list[Span]:
        """Divide the run's time as `spans`, by its ledger alone.

        It tells when the run held its nodes, and not what of that was of use. The files of an
        attempt are read only where it left no end.
        """

        def read(attempt: Attempt, _furthest: int) -> Traces:
            if attempt.ended is not None or not self._is_past:
                return Traces(is_program=True)
            paths = self.selected.paths.attempt(attempt.number)
            return replace(traces(paths, attempt, 0, 0, False, None, 0), is_program=True)

        found = [one.attempt for one in self.attempts]
        return self._divide({}, [(one, partial(read, one)) for one in found], now)

    def _divide(
        self,
        submitted: Mapping[Any, float],
        pairs: Sequence[tuple[Attempt, Callable[[int], Traces]]],
        now: float,
    ) -> list[Span]:
        again, resubmitted = self.selected.submission, None
        if again is not None and again.event == journal.SUBMITTED and pairs:
            mine = pairs[-1][0].submission
            resubmitted = again.time if again.paths.number != mine else None
        return goodput.spans(submitted, pairs, now, over=self._is_past, resubmitted=resubmitted)

    @property
    def _is_past(self) -> bool:
        """Check whether no time after its last sign is known to be the run's."""
        return self.status.over or self.status.state == run_state.UNKNOWN

    def _standing(self) -> int | None:
        """Return the last step that the run still has; None if it has all, or if unknown."""
        if not self.attempts or (self.status.over and self.attempts[-1].attempt.ended is None):
            return None
        last, seen = self.attempts[-1], any(one.attempt.end.get("saves") for one in self.attempts)
        return goodput.standing(
            last.attempt,
            restored=last.restored,
            reached=last.reached,
            kept=last.kept,
            saves_unseen=seen or any(one.restored for one in self.attempts),
        )

    def goodput(self, now: float) -> Goodput | None:
        """Sum `spans`; None if there are none."""
        found = self.spans(now)
        return goodput.summed(found) if found else None

    def to_data(self, now: float) -> dict[str, Any]:
        """Return plain data; ``now`` is the end of what is still running."""
        return {
            "experiment": self.status.experiment,
            "run": self.status.run,
            "state": self.status.state,
            "reason": self.status.reason,
            "replayed_steps": self.replayed,
            "goodput": spent.to_data() if (spent := self.goodput(now)) else None,
            "tracker_problems": self.tracker_problems,
            "attempts": [one.to_data() for one in self.attempts],
        }


@dataclass(frozen=True)
class CauseGroup:
    """At least one run; all share a kind and, but for ranks, nodes and numbers, its message.

    They are all over, or all go on by themselves.
    """

    kind: str
    over: bool
    runs: tuple[RunStory, ...]

    @property
    def example(self) -> RunStory:
        return self.runs[0]


def stories(
    selected: Sequence[Selected],
    *,
    warn: Say = lambda message: None,
    ask: Ask = slurm_cache.ask,
    values: bool = False,
) -> list[RunStory]:
    """Read the state and the attempts of each run, in the order given.

    ``warn`` is called with a message if Slurm does not answer; the last recorded state is used
    then. ``values`` includes steps and metrics in the statuses.
    """
    found = observe(selected, warn=warn, ask=ask, values=values)

    def look(pair: tuple[Selected, Observed]) -> RunStory:
        one, (status, those) = pair
        return RunStory(one, status, _attempts(one, those))

    each = [*zip(selected, found, strict=True)]
    counted = activity.count(each, "reading attempts")
    return [story for _, story in zip(counted, shared_look.each(look, each), strict=True)]


def bare(one: Selected, observed: Observed) -> RunStory:
    """Return a run's story without what its attempts' files tell, for `RunStory.held`."""
    attempts = (AttemptStory(each, None, None, None, (), 0) for each in observed.attempts)
    return RunStory(one, observed.status, tuple(attempts))


def grouped(runs: Iterable[RunStory]) -> list[CauseGroup]:
    """Group the runs with something wrong by their causes; the most frequent first."""
    found: dict[tuple[str, bool, str], list[RunStory]] = {}
    for run in runs:
        if run.kind is not None:
            # Those that stay in the queue need other advice.
            stuck = one_line(run.status.reason).partition(pending_reason.NEVER)[2]
            key = (run.kind, run.status.over, normalized(f"{run.message}{stuck}", _nodes(run)))
            found.setdefault(key, []).append(run)
    groups = [CauseGroup(kind, over, tuple(these)) for (kind, over, _), these in found.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def normalized(message: str, nodes: Iterable[str] = ()) -> str:
    """Replace what differs from run to run: the names of ``nodes``, ranks and other numbers."""
    for name in sorted(filter(None, nodes), key=len, reverse=True):
        message = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", _NODE, message)
    # Of the other ranks that ended so, there are more or fewer.
    message = re.sub(r" \(and ranks? [\d, -]+(?: and \d+ more)?(?: on [^()]*)?\)", "", message)
    message = re.sub(rf"\bnodes? {_NODE}(?:, {_NODE})*", f"node {_NODE}", message)
    return _NUMBER.sub("N", message).replace(_NODE, "NODE")


def one_line(message: Any) -> str:
    """Return a message on one line; empty for None."""
    return " ".join(str(message or "").split())


def _nodes(run: RunStory) -> set[str]:
    names: set[str] = set()
    for attempt in (one.attempt for one in run.attempts):
        names.update(attempt.nodes or (), attempt.cause.get("nodes") or ())
        names.add(str(attempt.cause.get("node") or ""))
    return names


def _attempts(selected: Selected, attempts: Sequence[Attempt]) -> tuple[AttemptStory, ...]:
    found: list[AttemptStory] = []
    furthest = 0
    steps = [_steps(selected, attempt) for attempt in attempts]
    unit = next((one.unit for one in reversed(steps) if one.unit is not None), None)
    others = [one.unit if one.unit not in (None, unit) else None for one in steps]
    steps = [
        one._replace(restored=None, reached=None, first=None) if other else one
        for one, other in zip(steps, others, strict=True)
    ]
    fresh = min((one.first for one in steps if one.first is not None), default=0)
    # A program that saves by itself shows by its first step what it went on from.
    began = [
        one.first - fresh
        if number and one.restored is None and one.first is not None
        else one.restored
        for number, one in enumerate(steps)
    ]
    for attempt, one, other, restored, next_restored in zip(
        attempts, steps, others, began, [*began[1:], None], strict=False
    ):
        kept, reached = None if other else attempt.end.get("checkpoint_step"), one.reached
        if next_restored is not None and (kept is not None or one.first is not None):
            # The nodes' own storage had a newer checkpoint, or saves were not seen.
            kept = max(kept or 0, min(next_restored, reached or 0))
        again = 0 if restored is None else max(0, min(reached or 0, furthest) - restored)
        furthest = max(furthest, reached or 0)
        found.append(
            AttemptStory(
                *(attempt, restored, reached, kept, one.events, again),
                read_from=one.read_from,
                first=one.first,
                other_unit=other,
            )
        )
    return tuple(found)


class _Steps(NamedTuple):
    """The steps of an attempt, as its files show them."""

    restored: int | None
    reached: int | None
    first: int | None
    events: tuple[Mapping[str, Any], ...]
    read_from: Mapping[str, Any] | None
    unit: str | None


def _steps(selected: Selected, attempt: Attempt) -> _Steps:
    """Read the restored and the reached step, so far for a running attempt, and the events."""
    paths = selected.paths.attempt(attempt.number)
    log = session_log.read_any(paths)
    events = tuple(event.record for event in log.of(*REPORTED))
    ended = attempt.end
    if "reached_step" in ended:
        known = ended.get("restored_step"), ended["reached_step"], ended.get("first_step")
        return _Steps(*known, events, log.read_from, ended.get("unit"))
    first = metrics_file.first_step(paths.metrics) if log.restored_step is None else None
    steps = log.reached_step, metrics_file.last_step(paths.metrics)
    reached = max((step for step in steps if step is not None), default=None)
    return _Steps(log.restored_step, reached, first, events, log.read_from, log.unit)


def _without_head(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {key: value for key, value in record.items() if key not in ("event", "attempt")}


def traces(
    paths: AttemptPaths,
    attempt: Attempt,
    restored: int,
    reached: int,
    is_program: bool,
    stands: int | None,
    furthest: int,
) -> Traces:
    """Read only the metrics that `Traces` needs: the replayed steps, a few next, the last one.

    ``restored`` and ``reached`` are the finished steps that the attempt began with and came to, 0
    where that is unknown; ``stands`` the last step that the run still has, None if it has all;
    ``furthest`` the furthest step of earlier attempts.
    """
    first = None
    loses = stands is not None and reached > stands
    passes = [_Passing(furthest), _Passing(stands if loses and stands else 0)]
    log = session_log.read_any(paths)
    seen: list[tuple[int, float]] = []
    # A file that cannot be read tells nothing here; status and results say that it cannot.
    with contextlib.suppress(OSError):
        for line in files.read_lines(paths.metrics):
            step, moment = _step(line), _time(line)
            if step is None or moment is None:
                continue
            if len(seen) <= _MOST_PACES:
                seen.append((step, moment))
            first = first or moment
            are_over = [one.note(step, moment) for one in passes]
            if all(are_over) and (not is_program or len(seen) > _MOST_PACES):
                break
    last = files.last_line(paths.metrics) or {}
    again, stood = (one.moment() for one in passes)
    found = Traces(
        session=log,
        first=first,
        last=_time(last) if first is not None else None,
        again=again,
        stood=(stood or _BEFORE) if loses else None,
        reached=reached,
    )
    if is_program:
        found = _of_program(found, paths, attempt, restored, seen, furthest)
    return found


class _Passing:
    """The moment at which a step was passed."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._before: tuple[int, float] | None = None
        self._after: tuple[int, float] | None = None

    def note(self, step: int, moment: float) -> bool:
        """Note a step with its time, in seconds since the epoch; return whether it is beyond."""
        if step <= self._step:
            self._before, self._after = (step, moment), None
            return False
        self._after = self._after or (step, moment)
        return True

    def moment(self) -> float | None:
        points = [*filter(None, (self._before, self._after))]
        return goodput.repeated_until(points, self._step)


def _of_program(
    found: Traces,
    paths: AttemptPaths,
    attempt: Attempt,
    restored: int,
    seen: Sequence[tuple[int, float]],
    furthest: int,
) -> Traces:
    """Add what only the traces of a script or command need."""
    if found.first is None and found.session.sightings:
        # Its lines have no times: the agent noted when it saw them.
        seen = found.session.sightings
        again = goodput.repeated_until(seen, furthest)
        found = replace(found, first=seen[0][1], last=seen[-1][1], again=again)
    begun = goodput.first_began(seen, restored)
    if found.again is None and begun is not None and restored < furthest < seen[0][0]:
        again = goodput.repeated_until([(restored, begun), seen[0]], furthest)
        found = replace(found, again=again)
    started = attempt.workers_started
    starting = 0.0 if begun is None or started is None else begun - started
    if (alive := goodput.worked_until(found, seen, starting)) is None:
        alive = _time(files.last_line(paths.log_sizes) or {})
    return replace(found, is_program=True, begun=begun, alive=alive)


def _step(record: dict[str, Any]) -> int | None:
    step = record.get("step")
    return step if WHOLE.accepts(step) else None


def _time(record: dict[str, Any]) -> float | None:
    moment = record.get("time")
    return moment if TIME.accepts(moment) else None
