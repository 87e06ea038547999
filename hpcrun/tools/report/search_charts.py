"""What a report draws of a search: its course, each parameter alone, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.observe.status import run_state, status_table
from hpcrun.observe.tables import number
from hpcrun.state.plan import SEARCH
from hpcrun.text import short_ends
from hpcrun.tools.report import svg
from hpcrun.tools.report.report import Report, RunReport
from hpcrun.tools.report.svg import ChartPoint

# Points of one drawing: of more trials the best, and the newest of the course.
_MOST = 400
_MOST_KEYS = 12


@dataclass(frozen=True)
class SearchCharts:
    """The drawings of one search."""

    experiment: str
    sentence: str
    """How many trials there are, by what became of them."""
    history: str
    slices: list[tuple[str, str]]
    """The name of a parameter, and the result against it."""
    parallel: str


def draw(found: Report) -> Iterator[SearchCharts]:
    """Yield the drawings of each search among the runs of which some have a result."""
    for name, base in found.bases.items():
        mine = [
            (run, float(value))
            for run, row in zip(found.runs, found.results.rows, strict=True)
            if run.selected.experiment.name == name and SEARCH in run.selected.run.spec
            if run.selected.run.swept
            and (value := row.get(f"{found.objective}.best")) is not None
            and math.isfinite(value)
        ]
        if SEARCH not in base.run.spec or not mine:
            continue
        states = [
            run.story.status.state for run in found.runs if run.selected.experiment.name == name
        ]
        sign = -1.0 if found.mode == "max" else 1.0
        best = sorted(mine, key=lambda pair: sign * pair[1])[:_MOST]
        keys = [*dict.fromkeys(key for run, _ in best for key in run.selected.run.swept)]
        names, keys = short_ends(keys), keys[:_MOST_KEYS]
        yield SearchCharts(
            name,
            status_table.trials_text(states),
            _history(mine, found.objective, sign),
            [(names[key], _slice(best, key, names[key], found)) for key in keys],
            _parallel(best, keys, found),
        )


def _history(trials: Sequence[tuple[RunReport, float]], metric: str, sign: float) -> str:
    line: list[tuple[float, float]] = []
    points = []
    for run, value in trials:
        at = float(run.selected.run.number)
        points.append(_point(run, at, value, metric))
        if not line or sign * value < sign * line[-1][1]:
            line += [(at, line[-1][1]), (at, value)] if line else [(at, value)]
    best, last = line[-1], float(trials[-1][0].selected.run.number)
    text = (
        f"The best {metric} so far, over {len(trials)} trials with a value: from "
        f"{number(line[0][1])} to {number(best[1])}, reached by trial {best[0]:.0f}"
    )
    return svg.scatter(text, "trial", points[-_MOST:], [*line, (last, best[1])])


def _slice(trials: Sequence[tuple[RunReport, float]], key: str, name: str, found: Report) -> str:
    points = [
        _point(run, run.selected.run.swept[key], value, found.objective)
        for run, value in trials
        if key in run.selected.run.swept
    ]
    text = f"{found.objective} against {name} of {len(points)} trials; best at {points[0].x}"
    return svg.scatter(text, name, points)


def _parallel(trials: Sequence[tuple[RunReport, float]], keys: Sequence[str], found: Report) -> str:
    names = short_ends(keys)
    axes = [(names[key], [run.selected.run.swept.get(key) for run, _ in trials]) for key in keys]
    axes.append((found.objective, [value for _, value in trials]))
    titles = [_title(run, value, found.objective) for run, value in trials]
    text = f"Parameters and {found.objective} of {len(trials)} trials, the best one thick"
    return svg.parallel(text, axes, titles)


def _point(run: RunReport, x: Any, value: float, metric: str) -> ChartPoint:
    is_whole = run.story.status.state == run_state.COMPLETED
    return ChartPoint(x, value, _title(run, value, metric), "point" if is_whole else "point part")


def _title(run: RunReport, value: float, metric: str) -> str:
    one = run.selected
    return f"{one.name} ({run.story.status.state}), {one.run.label}: {metric} {number(value)}"
