"""The content of a report, collected from the files of its runs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun import activity, shared_look
from hpcrun.errors import UsageError
from hpcrun.observe import diff, results, step_profile
from hpcrun.observe.diagnosis import cost
from hpcrun.observe.diagnosis.attempts import RunStory, stories
from hpcrun.observe.diagnosis.cost import Cost
from hpcrun.observe.diagnosis.goodput import Goodput, Span, summed
from hpcrun.observe.diff import Change
from hpcrun.observe.read import metric_curves, node_usage
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.node_usage import RunTelemetry
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.results import Results
from hpcrun.observe.step_profile import StepProfile
from hpcrun.policy import log_excerpt
from hpcrun.policy.log_excerpt import LINES, folded
from hpcrun.state import files, submission_facts
from hpcrun.state.layout import RunPaths, SubmissionPaths
from hpcrun.state.spec import profiling
from hpcrun.submission.code.code_diff import ADDED, CHANGED, REMOVED
from hpcrun.text import Say, plural
from hpcrun.tools.report import curves
from hpcrun.tools.report.curves import RunCurves

_ALL_SHOWN, _BEST_SHOWN = 20, 12
# Characters of all ends together, the most and the least of one, and the longest line.
_ALL, _MOST, _LEAST, _LONGEST = 20_000, 5_000, 600, 300
# Of more runs only those that went wrong have an end: each costs opening a file.
_MOST_RUNS = 100
# Lines of a run with which nothing is wrong.
_FEW = 5
_READ = 1 << 16


@dataclass(frozen=True)
class RunReport:
    """One run, as much of it as a report has room for."""

    story: RunStory
    curves: RunCurves
    telemetry: RunTelemetry
    spans: list[Span]
    """Its time by category; empty if no attempt logged anything."""
    cost: Cost
    changes: tuple[Change, ...]
    """The differences of its resolved spec to that of its experiment's first run here."""
    log: LogTail | None = None
    """The last lines that it printed."""
    profile: StepProfile | None = None
    """The profile of its steps, if `hpcrun profile` made the run."""

    @property
    def selected(self) -> Selected:
        return self.story.selected

    @property
    def name(self) -> str:
        return self.selected.name

    @property
    def goodput(self) -> Goodput:
        """The seconds of each kind."""
        return summed(self.spans)


@dataclass(frozen=True)
class CodeVersion:
    """The runs of one submission, and the code that it froze."""

    runs: tuple[Selected, ...]
    facts: dict[str, Any]
    """The content of ``submission.json``."""
    differs: tuple[str, ...]
    """The files that differ from the submission before, or why these are unknown."""


@dataclass(frozen=True)
class Report:
    """All that a page shows."""

    made: float
    """The time of collection, in seconds since the epoch."""
    runs: tuple[RunReport, ...]
    results: Results
    """A row for each of the ``runs``, in their order."""
    objective: str
    """The metric by which runs are compared."""
    mode: str
    """``min`` if the least value is the best, ``max`` if the greatest is."""
    ranked: tuple[int, ...]
    """The places of the runs with a value of the objective, the best first."""
    shown: tuple[int, ...]
    """The places of the runs that the charts show at first."""
    bases: dict[str, Selected]
    """Experiment -> the first of its runs here, to whose spec the others are compared."""
    code: tuple[CodeVersion, ...]
    """One entry for each submission."""

    @property
    def users(self) -> list[str]:
        """The users who submitted the runs."""
        return sorted({str(each.facts["user"]) for each in self.code if each.facts.get("user")})

    @property
    def metrics(self) -> list[str]:
        """Every metric, the objective first."""
        found = dict.fromkeys(name for run in self.runs for name in run.curves.metrics)
        return sorted(found, key=lambda name: name != self.objective)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The place of each run in the order of colours: those shown at first come first."""
        shown = set(self.shown)
        order = [*self.shown, *(place for place in range(len(self.runs)) if place not in shown)]
        return tuple(sorted(range(len(order)), key=order.__getitem__))

    @property
    def totals(self) -> list[Cost]:
        """The cost of the experiments."""
        return cost.totals(run.cost for run in self.runs)

    @property
    def is_priced(self) -> bool:
        """The profile of some run has prices."""
        return any(run.cost.money is not None for run in self.runs)


def collect(selected: Sequence[Selected], *, say: Say = lambda message: None) -> Report:
    """Read everything that there is of these runs.

    ``say`` is called with a message if Slurm does not answer.
    """
    now = time.time()
    found = stories(selected, warn=say, values=True)
    thinned: dict[Path, RunCurves] = {}

    def read(paths: RunPaths) -> Curve:
        curve = metric_curves.read(paths)
        thinned[paths.directory] = curves.thin(curve, len(selected))
        return curve

    table = results.collect(selected, [story.status for story in found], read, say)
    bases: dict[str, Selected] = {}
    for one in selected:
        bases.setdefault(one.experiment.name, one)
    objective = selected[0].run.objective
    name, mode = (objective.metric, objective.better) if objective else ("", "min")
    ranked = _ranked(table, name, mode)
    looks = shared_look.each(lambda story: _run(story, thinned, bases, len(selected), now), found)
    counted = activity.count(found, "reading logs and telemetry")
    return Report(
        made=now,
        runs=tuple(run for _, run in zip(counted, looks, strict=True)),
        results=table,
        objective=name,
        mode=mode,
        ranked=ranked,
        shown=_choose_curves(selected, ranked),
        bases=bases,
        code=tuple(_code(selected)),
    )


def _run(
    story: RunStory,
    thinned: dict[Path, RunCurves],
    bases: dict[str, Selected],
    runs: int,
    now: float,
) -> RunReport:
    one, base = story.selected, bases[story.selected.experiment.name]
    spans = [span for span in story.spans(now) if math.isfinite(span.seconds)]
    return RunReport(
        story=story,
        curves=thinned.get(one.paths.directory, RunCurves()),
        telemetry=node_usage.read(one.paths, runs),
        spans=spans,
        cost=cost.of_story(story, spans),
        changes=() if one is base else diff.changes(base.run.spec, one.run.spec),
        log=_log_tail(story, runs),
        profile=_profile(story),
    )


def _profile(story: RunStory) -> StepProfile | None:
    if profiling.KEY not in story.selected.run.spec or not story.attempts:
        return None
    number = story.attempts[-1].attempt.number
    return step_profile.read(story.selected.paths.attempt(number))


def _ranked(found: Results, objective: str, mode: str) -> tuple[int, ...]:
    best = [(row.get(f"{objective}.best"), place) for place, row in enumerate(found.rows)]
    known = [(value, place) for value, place in best if value is not None and math.isfinite(value)]
    known.sort(key=lambda pair: -pair[0] if mode == "max" else pair[0])
    return tuple(place for _, place in known)


def _choose_curves(selected: Sequence[Selected], ranked: Sequence[int]) -> tuple[int, ...]:
    """Choose all runs if they are few, else the best of each experiment by turns, else the first.

    templates/report/report.js chooses by the same rule of those that a filter leaves.
    """
    if len(selected) <= _ALL_SHOWN:
        return tuple(range(len(selected)))
    counts: Counter[str] = Counter()
    turns = []
    for order, place in enumerate(ranked or range(len(selected))):
        name = selected[place].experiment.name
        turns.append((counts[name], order, place))
        counts[name] += 1
    return tuple(place for _, _, place in sorted(turns)[:_BEST_SHOWN])


def _code(selected: Sequence[Selected]) -> Iterator[CodeVersion]:
    groups: dict[SubmissionPaths, list[Selected]] = {}
    for one in selected:
        groups.setdefault(one.planned.paths, []).append(one)
    before: dict[str, Selected] = {}
    for paths in sorted(groups, key=lambda paths: paths.number):
        first, name = groups[paths][0], paths.experiment.name
        differs = _differs(before[name], first) if name in before else ()
        yield CodeVersion(tuple(groups[paths]), submission_facts.describe(paths), differs)
        before[name] = first


def _differs(before: Selected, after: Selected) -> tuple[str, ...]:
    try:
        code = diff.code_difference(before, after)
    except UsageError as error:
        return (error.message,)
    number = before.planned.paths.number
    if not code.files:
        return (f"the same code as in submission {number}",)
    return tuple(
        f"{plural(len(names), 'file')} {how} since submission {number}: {', '.join(names)}"
        for how in (CHANGED, ADDED, REMOVED)
        if (names := code.names(how))
    )


class LogTail(NamedTuple):
    """The last lines of a rank's log, without colours."""

    title: str
    lines: tuple[str, ...]


def _log_tail(story: RunStory, runs: int) -> LogTail | None:
    """Return the end of the log that tells most, of one of so many runs; None if there is none."""
    bad = story.bad if story.kind else None
    tail = bad.attempt.cause.get("log_tail") if bad else None
    if bad and isinstance(tail, list) and tail:
        rank = bad.attempt.cause.get("rank")
        lines = [str(line) for line in tail[-2 * LINES :]]
        return _cut_log(f"rank {rank} of attempt {bad.attempt.number}", lines, runs)
    if runs > _MOST_RUNS or not story.attempts:
        return None
    number = story.attempts[-1].attempt.number
    try:
        path = story.selected.paths.attempt(number).rank_log(0)
        lines = log_excerpt.excerpt(files.read_tail(path, _READ))[-_FEW:]
    except OSError:
        return None
    return _cut_log(f"rank 0 of attempt {number}", lines, runs) if any(lines) else None


def _cut_log(title: str, lines: list[str], runs: int) -> LogTail:
    """Keep the last lines that there is room for, each once and without what colours it."""
    plain = [_plain(line) for line in lines]
    room = min(_MOST, max(_LEAST, _ALL // max(1, runs)))
    kept: list[str] = []
    for line in reversed(plain):
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.insert(0, line)
    if len(kept) < len(plain):
        kept.insert(0, f"… ({len(plain) - len(kept)} lines before these)")
    return LogTail(f"The last lines of {title}", tuple(kept))


def _plain(line: str) -> str:
    import click

    shown = b"\n".join(folded(line.encode(errors="replace"))).decode(errors="replace")
    text = click.unstyle(shown)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
