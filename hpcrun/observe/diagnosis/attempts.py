"""How runs came to be where they are: the end of each attempt, what it cost and what followed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpcrun.observe.diagnosis import goodput
from hpcrun.observe.diagnosis.goodput import Goodput, Span, Traces
from hpcrun.observe.read import history, run_files
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import jobs, run_state
from hpcrun.observe.status.status import Ask, RunStatus, observe
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import RunPlan

CANCELLED = "cancelled"
NO_END = "no_end"

TOLD = ("save_failed", "save_skipped", "quarantined", "passed_over")

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NODE = "\0"


@dataclass(frozen=True)
class AttemptStory:
    """One attempt: how far it came, and what it lost.

    Attributes
    ----------
    attempt
        What the ledger says.
    restored, reached, kept
        The finished optimizer steps that it began with and reached, and the newest checkpoint as it
        ended; None where nothing tells.
    events
        Saves that failed or were left out, and checkpoints that were set aside.
    replayed
        Steps that an earlier attempt had done already.
    gap
        Seconds from its end to the start of the next attempt; None without either.
    resubmitted
        Whether the next attempt belongs to another submission.
    """

    attempt: Attempt
    restored: int | None
    reached: int | None
    kept: int | None
    events: tuple[dict[str, Any], ...] = ()
    replayed: int = 0
    gap: float | None = None
    resubmitted: bool = False

    @property
    def ended_badly(self) -> bool:
        return self.attempt.outcome not in (None, "completed")

    @property
    def kind(self) -> str:
        """The kind of its cause, of `hpcrun.policy.causes`."""
        return str((self.attempt.cause or {}).get("kind") or "unknown")

    @property
    def message(self) -> str:
        """Its cause in words, on one line."""
        said = (self.attempt.cause or {}).get("message") or self.attempt.outcome or ""
        return " ".join(str(said).split()).rstrip(".")

    @property
    def lost(self) -> int | None:
        """Steps beyond the newest checkpoint; None where there is no telling."""
        if not self.ended_badly or self.reached is None or self.kept is None:
            return None
        return max(0, self.reached - self.kept)

    def to_data(self) -> dict[str, Any]:
        """Plain data; times are seconds since the epoch."""
        found = self.attempt
        return {
            "attempt": found.number,
            "job_id": found.started.get("job_id"),
            "nodes": found.started.get("nodes"),
            "started": found.started.get("time"),
            "ended": (found.ended or {}).get("time"),
            "outcome": found.outcome,
            "cause": found.cause,
            "stopping": _without_head(found.stopping),
            "restored_step": self.restored,
            "reached_step": self.reached,
            "checkpoint_step": self.kept,
            "lost_steps": self.lost,
            "replayed_steps": self.replayed,
            "decided": _without_head(found.decided),
            "straggler": _without_head(found.straggler),
            "events": list(self.events),
        }


@dataclass(frozen=True)
class RunStory:
    """One run: its state, and its attempts in order."""

    selected: Selected
    status: RunStatus
    attempts: tuple[AttemptStory, ...] = ()

    def spans(self, now: float) -> list[Span]:
        """What it did when, in order; empty where no attempt tells."""
        experiment, paths = self.selected.experiment, self.selected.paths
        numbers = {one.attempt.started.get("submission") for one in self.attempts}
        dates = {
            number: history.describe(experiment.submission(number)).get("time")
            for number in numbers
            if isinstance(number, int)
        }
        submitted = {
            number: float(when) for number, when in dates.items() if isinstance(when, (int, float))
        }
        told = [
            (one.attempt, partial(_traces, paths.attempt(one.attempt.number)))
            for one in self.attempts
        ]
        again, resubmitted = self.selected.submission, None
        if again is not None and again.event == history.SUBMITTED and self.attempts:
            mine = self.attempts[-1].attempt.started.get("submission")
            resubmitted = again.time if again.paths.number != mine else None
        return goodput.spans(submitted, told, now, over=self.status.over, resubmitted=resubmitted)

    def plan_of(self, attempt: int | None) -> RunPlan:
        """The plan that an attempt was of; None for, or where that cannot be read, the newest."""
        newest = self.selected.run
        found = next((one.attempt for one in self.attempts if one.attempt.number == attempt), None)
        number = found.started.get("submission") if found else None
        if not isinstance(number, int) or number == self.selected.planned.paths.number:
            return newest
        plan = run_files.plan(self.selected.experiment.submission(number))
        runs = plan.runs if plan else ()
        return next((one for one in runs if one.number == newest.number), newest)

    def goodput(self, now: float) -> Goodput | None:
        """Where its time went; None where no attempt tells."""
        found = self.spans(now)
        return goodput.summed(found) if found else None

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
        """What stands between the run and its completion.

        A kind of `hpcrun.policy.causes`; ``no_end`` where the newest attempt left none and its job
        is over; the run's state where no attempt tells; None where nothing is amiss.
        """
        status = self.status
        if status.state == run_state.COMPLETED:
            return None
        if status.state == run_state.CANCELLED:
            return CANCELLED
        last = self.attempts[-1] if self.attempts else None
        settled = status.over or status.state == run_state.UNKNOWN
        if last is not None and last.attempt.ended is None and settled:
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
        return " ".join(str(self.status.reason or self.status.state).split())

    def to_data(self) -> dict[str, Any]:
        """What ``hpcrun why --json`` says of the run."""
        from hpcrun.observe.diagnosis.advice import advise

        return {
            "experiment": self.status.experiment,
            "run": self.status.run,
            "state": self.status.state,
            "reason": self.status.reason,
            "replayed_steps": self.replayed,
            "goodput": spent.to_data() if (spent := self.goodput(time.time())) else None,
            "attempts": [one.to_data() for one in self.attempts],
            "advice": advise(self, self.status.name),
        }


@dataclass(frozen=True)
class Group:
    """Runs that share a kind of cause and, but for ranks, nodes and numbers, its message.

    Attributes
    ----------
    kind
        As `RunStory.kind`.
    over
        Whether they are over; the others go on by themselves.
    runs
        At least one, in the order given.
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
    warn: Callable[[str], None] = lambda message: None,
    ask: Ask = jobs.ask,
    values: bool = False,
) -> list[RunStory]:
    """What became of each run, in the order given.

    Parameters
    ----------
    warn
        Told when Slurm does not answer; the last state on record is given then.
    ask
        What asks the cluster.
    values
        Have the statuses tell steps and metrics too.
    """
    found = observe(selected, warn=warn, ask=ask, values=values)
    return [
        RunStory(one, status, _attempts(one, attempts))
        for one, (status, attempts) in zip(selected, found, strict=True)
    ]


def grouped(runs: Iterable[RunStory]) -> list[Group]:
    """Runs with something amiss by their causes; the most frequent first."""
    found: dict[tuple[str, bool, str], list[RunStory]] = {}
    for run in runs:
        if run.kind is not None:
            key = (run.kind, run.status.over, normal(run.message, _nodes(run)))
            found.setdefault(key, []).append(run)
    groups = [Group(kind, over, tuple(these)) for (kind, over, _), these in found.items()]
    return sorted(groups, key=lambda group: -len(group.runs))


def normal(message: str, nodes: Iterable[str] = ()) -> str:
    """A message without what differs from run to run: names of nodes, ranks and other numbers."""
    for name in sorted(filter(None, nodes), key=len, reverse=True):
        message = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", _NODE, message)
    message = re.sub(rf"\bnodes? {_NODE}(?:, {_NODE})*", f"node {_NODE}", message)
    return _NUMBER.sub("N", message).replace(_NODE, "NODE")


def _nodes(run: RunStory) -> set[str]:
    names: set[str] = set()
    for one in run.attempts:
        cause = one.attempt.cause or {}
        names.update(one.attempt.started.get("nodes") or (), cause.get("nodes") or ())
        names.add(str(cause.get("node") or ""))
    return names


def _attempts(selected: Selected, attempts: Sequence[Attempt]) -> tuple[AttemptStory, ...]:
    found: list[AttemptStory] = []
    furthest = 0
    words = [_own_words(selected, attempt) for attempt in attempts]
    later = [*zip(attempts[1:], words[1:], strict=True), (None, (None,))]
    for attempt, told, (following, next_words) in zip(attempts, words, later, strict=False):
        restored, reached, events = told
        kept, went_on = (attempt.ended or {}).get("checkpoint_step"), next_words[0]
        if kept is not None and went_on is not None:
            # The nodes' own storage had more.
            kept = max(kept, min(went_on, reached or 0))
        again = 0
        if restored is not None and reached is not None:
            again = max(0, min(reached, furthest) - restored)
        furthest = max(furthest, reached or 0)
        found.append(
            AttemptStory(
                attempt=attempt,
                restored=restored,
                reached=reached,
                kept=kept,
                events=events,
                replayed=again,
                gap=_gap(attempt, following),
                resubmitted=following is not None
                and following.started.get("submission") != attempt.started.get("submission"),
            )
        )
    return tuple(found)


def _own_words(
    selected: Selected, attempt: Attempt
) -> tuple[int | None, int | None, tuple[dict[str, Any], ...]]:
    """Restored and reached step, and the events worth telling; of an open attempt as of now."""
    paths = selected.paths.attempt(attempt.number)
    lines = list(files.read_lines(paths.session))
    events = tuple(line for line in lines if line.get("event") in TOLD)
    if attempt.ended is not None and "reached_step" in attempt.ended:
        return attempt.ended.get("restored_step"), attempt.ended["reached_step"], events
    restored = [_step(line) for line in lines if line.get("event") == "restored"]
    steps = [_step(line) for line in lines if line.get("event") in ("saved", "finished")]
    steps += [*restored, _step(files.last_line(paths.metrics) or {})]
    known = [step for step in steps if step is not None]
    return (restored[-1] if restored else None), max(known, default=None), events


def _traces(paths: AttemptPaths, furthest: int) -> Traces:
    """Reads of the metrics no more than the first steps, those done over, and the last one."""
    first, again = None, None
    for line in files.read_lines(paths.metrics):
        step, moment = _step(line), line.get("time")
        if step is None or not isinstance(moment, (int, float)):
            continue
        first = moment if first is None else first
        if step > furthest:
            break
        again = moment
    last = files.last_line(paths.metrics) or {}
    return Traces(
        session=tuple(files.read_lines(paths.session)),
        first=first,
        last=last.get("time") if first is not None else None,
        again=again,
        reached=_step(last) or 0,
    )


def _step(record: dict[str, Any]) -> int | None:
    step = record.get("step")
    return step if isinstance(step, int) else None


def _gap(attempt: Attempt, following: Attempt | None) -> float | None:
    ended = (attempt.ended or {}).get("time")
    began = following.started.get("time") if following else None
    return None if ended is None or began is None else max(0.0, float(began) - float(ended))


def _without_head(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {key: value for key, value in record.items() if key not in ("event", "attempt")}
