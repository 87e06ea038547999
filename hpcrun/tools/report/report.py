"""The content of a report, collected from the files of its runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.observe.diagnosis import cost
from hpcrun.observe.diagnosis.attempts import RunStory, stories
from hpcrun.observe.diagnosis.cost import Cost
from hpcrun.observe.diagnosis.goodput import Goodput, Span, summed
from hpcrun.observe.diagnosis.price_list import PriceList
from hpcrun.observe.profile import step_profile
from hpcrun.observe.profile.step_profile import StepProfile
from hpcrun.observe.read import metric_curves, node_usage
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.node_usage import RunTelemetry
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.results import diff, results
from hpcrun.observe.results.diff import Change
from hpcrun.observe.results.results import Results
from hpcrun.state import history
from hpcrun.state.layout import RunPaths, SubmissionPaths
from hpcrun.state.spec import profiling
from hpcrun.submission.code.code_diff import ADDED, CHANGED, REMOVED
from hpcrun.text import Say, plural
from hpcrun.tools.report import curves, log_tails
from hpcrun.tools.report.curves import RunCurves
from hpcrun.tools.report.log_tails import LogTail

_ALL_SHOWN, _BEST_SHOWN = 20, 12


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
        found = curves.names(run.curves for run in self.runs)
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
    return Report(
        made=now,
        runs=tuple(
            _run(story, thinned, bases, len(selected), now)
            for story in activity.counted(found, "reading logs and telemetry")
        ),
        results=table,
        objective=name,
        mode=mode,
        ranked=ranked,
        shown=_shown(len(selected), ranked),
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
        cost=cost.of_run(one.experiment.name, story.plan_of, spans, PriceList.of(one.plan.cluster)),
        changes=() if one is base else diff.changes(base.run.spec, one.run.spec),
        log=log_tails.read(story, runs),
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


def _shown(runs: int, ranked: Sequence[int]) -> tuple[int, ...]:
    """Choose all runs if they are few, else the best, else the first."""
    if runs <= _ALL_SHOWN:
        return tuple(range(runs))
    return tuple((ranked or range(runs))[:_BEST_SHOWN])


def _code(selected: Sequence[Selected]) -> Iterator[CodeVersion]:
    groups: dict[SubmissionPaths, list[Selected]] = {}
    for one in selected:
        groups.setdefault(one.planned.paths, []).append(one)
    before: dict[str, Selected] = {}
    for paths in sorted(groups, key=lambda paths: paths.number):
        first, name = groups[paths][0], paths.experiment.name
        differs = _differs(before[name], first) if name in before else ()
        yield CodeVersion(tuple(groups[paths]), history.describe(paths), differs)
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
