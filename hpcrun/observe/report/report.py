"""What a report holds, collected from the files of its runs; `report_page` makes a page of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.diagnosis import attempts as diagnosis_attempts
from hpcrun.observe.diagnosis import cost, narrative
from hpcrun.observe.diagnosis.attempts import RunStory
from hpcrun.observe.diagnosis.cost import Cost
from hpcrun.observe.diagnosis.goodput import Goodput, Span, summed
from hpcrun.observe.read import history
from hpcrun.observe.read import metric_curves as metrics
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.report import curves as report_curves
from hpcrun.observe.report import node_usage
from hpcrun.observe.report.curves import RunCurves
from hpcrun.observe.report.node_usage import RunTelemetry
from hpcrun.observe.results import diff, results
from hpcrun.observe.results.diff import Change
from hpcrun.observe.results.results import Results
from hpcrun.state.layout import RunPaths
from hpcrun.submit.code.code_diff import ADDED, CHANGED, REMOVED
from hpcrun.text import Say, plural

_ALL_SHOWN, _BEST_SHOWN = 20, 12
_SAY_AFTER = 5.0


@dataclass(frozen=True)
class RunReport:
    """One run.

    Attributes
    ----------
    story
        Its state and its attempts.
    curves, telemetry
        As much of them as the report has room for.
    spans
        What it did when; empty where no attempt tells.
    cost
        The hours of that.
    changes
        How its resolved spec differs from that of its experiment's first run here.
    """

    story: RunStory
    curves: RunCurves
    telemetry: RunTelemetry
    spans: list[Span]
    cost: Cost
    changes: tuple[Change, ...]

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
    """A submission, and the code that it froze.

    Attributes
    ----------
    experiment, submission
        Whose.
    facts
        ``submission.json``.
    runs
        Their numbers.
    differs
        Files that are not as in the submission before, or why that cannot be told.
    """

    experiment: str
    submission: int
    facts: dict[str, Any]
    runs: tuple[int, ...]
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All of it.

    Attributes
    ----------
    made
        When, in seconds since the epoch.
    results
        A row a run, in the order of ``runs``.
    objective, mode
        The metric that says which run is best, and whether less (``min``) or more (``max``) is.
    shown
        The places of the runs that the charts show at first.
    bases
        Experiment -> the first of its runs here, whose spec stands for the others.
    code
        One entry a submission.
    """

    made: float
    runs: tuple[RunReport, ...]
    results: Results
    objective: str
    mode: str
    shown: tuple[int, ...]
    bases: dict[str, Selected]
    code: tuple[CodeVersion, ...]

    @property
    def experiments(self) -> list[str]:
        return list(self.bases)

    @property
    def users(self) -> list[str]:
        """Who submitted the runs."""
        return sorted({str(each.facts["user"]) for each in self.code if each.facts.get("user")})

    @property
    def metrics(self) -> list[str]:
        """Every metric, the objective first."""
        found = report_curves.names(run.curves for run in self.runs)
        return sorted(found, key=lambda name: name != self.objective)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Which colour is whose: runs that are shown at first come first."""
        shown = set(self.shown)
        order = [*self.shown, *(place for place in range(len(self.runs)) if place not in shown)]
        return tuple(sorted(range(len(order)), key=order.__getitem__))

    @property
    def totals(self) -> list[Cost]:
        """What the experiments cost."""
        return cost.totals(run.cost for run in self.runs)


@dataclass
class _Progress:
    """Says every few seconds how far a long read is."""

    say: Say
    total: int
    done: int = 0
    said: float = field(default_factory=time.monotonic)

    def step(self) -> None:
        self.done += 1
        if time.monotonic() - self.said > _SAY_AFTER:
            self.said = time.monotonic()
            self.say(f"read {self.done:,} of {self.total:,} runs")


def collect(selected: Sequence[Selected], *, say: Say = lambda message: None) -> Report:
    """Read everything that there is of these runs.

    Parameters
    ----------
    say
        Told when Slurm does not answer, and how far it is where that takes long.
    """
    now = time.time()
    stories = diagnosis_attempts.stories(selected, warn=say, values=True)
    curves: dict[Path, RunCurves] = {}
    progress = _Progress(say, len(selected))

    def read(paths: RunPaths) -> Curve:
        curve = metrics.read(paths)
        curves[paths.directory] = report_curves.thin(curve, len(selected))
        progress.step()
        return curve

    found = results.collect(selected, [story.status for story in stories], read)
    bases: dict[str, Selected] = {}
    for one in selected:
        bases.setdefault(one.experiment.name, one)
    runs = tuple(
        _run(story, curves, bases[story.selected.experiment.name], len(selected), now)
        for story in stories
    )
    objective = selected[0].run.spec.get("objective") or {}
    name, mode = str(objective.get("metric") or ""), str(objective.get("mode") or "min")
    return Report(
        made=now,
        runs=runs,
        results=found,
        objective=name,
        mode=mode,
        shown=_shown(found, name, mode),
        bases=bases,
        code=tuple(_code(selected)),
    )


def attempts(run: RunReport, now: float, most: int = 30) -> list[list[str]]:
    """What became of each attempt, in sentences; of very many the first and the last."""
    told = run.story.attempts
    if len(told) <= most:
        return [narrative.attempt(one, run.story, now) for one in told]
    head, tail = told[: most // 3], told[-(most - most // 3) :]
    left_out = f"{len(told) - most:,} attempts between these are left out here."
    return [
        *(narrative.attempt(one, run.story, now) for one in head),
        [left_out],
        *(narrative.attempt(one, run.story, now) for one in tail),
    ]


def _run(
    story: RunStory, curves: dict[Path, RunCurves], base: Selected, runs: int, now: float
) -> RunReport:
    one = story.selected
    spans = [span for span in story.spans(now) if math.isfinite(span.seconds)]
    return RunReport(
        story=story,
        curves=curves.get(one.paths.directory, RunCurves()),
        telemetry=node_usage.read(one.paths, runs),
        spans=spans,
        cost=cost.of_run(one.experiment.name, story.plan_of, spans),
        changes=() if one is base else diff.changes(base.run.spec, one.run.spec),
    )


def _shown(found: Results, objective: str, mode: str) -> tuple[int, ...]:
    """All runs where they are few, else the best, else the first."""
    places = range(len(found.rows))
    if len(places) <= _ALL_SHOWN:
        return tuple(places)
    best = [(row.get(f"{objective}.best"), place) for place, row in enumerate(found.rows)]
    known = [(value, place) for value, place in best if value is not None and math.isfinite(value)]
    known.sort(key=lambda pair: -pair[0] if mode == "max" else pair[0])
    return tuple(place for _, place in known[:_BEST_SHOWN]) or tuple(places[:_BEST_SHOWN])


def _code(selected: Sequence[Selected]) -> list[CodeVersion]:
    groups: dict[Path, list[Selected]] = {}
    for one in selected:
        groups.setdefault(one.planned.paths.directory, []).append(one)
    found: list[CodeVersion] = []
    before: dict[str, Selected] = {}
    for these in sorted(groups.values(), key=lambda group: group[0].planned.paths.number):
        one = these[0]
        name = one.experiment.name
        found.append(
            CodeVersion(
                experiment=name,
                submission=one.planned.paths.number,
                facts=history.describe(one.planned.paths),
                runs=tuple(each.run.number for each in these),
                differs=_differs(before[name], one) if name in before else (),
            )
        )
        before[name] = one
    return found


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
