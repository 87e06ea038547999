"""One device against many: ``hpcrun scaling``. A run of trials for each number of devices.

Strong scaling keeps the global batch, weak scaling what each rank does. At the spec's own number of
ranks both are the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hpcrun.compile import Compiled, CompiledRun, compile_spec
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.policy import batch
from hpcrun.text import Say, brief, plural
from hpcrun.tools.perf import trial_candidates, trial_run
from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialPlan, TrialRecord, TrialScore
from hpcrun.tools.perf.trial_candidates import SpacePoint

STRONG, WEAK = "strong", "weak"
NAME = "scaling"
_STEPS = 10
_MOST = 16
PAGE_MARK = "<!DOCTYPE html>\n<!-- hpcrun scaling -->\n"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 320, 60, 20, 20, 50
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem }
svg { width: 100%; height: auto } text { font-size: 12px; fill: #444 }
.grid { stroke: #ddd } .ideal { stroke: #999; stroke-dasharray: 4 4; fill: none }
.strong { stroke: #0a5fb4; fill: none; stroke-width: 2 }
.weak { stroke: #c4500b; fill: none; stroke-width: 2 }
text.strong { fill: #0a5fb4; stroke: none } text.weak { fill: #c4500b; stroke: none }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right }
"""


@dataclass(frozen=True)
class ScalePoint:
    """One number of ranks, and one kind of scaling."""

    kind: str
    nodes: int
    ranks: int
    train: int
    """Samples of an optimizer step."""
    micro: int
    score: TrialScore | None = None
    refused: str | None = None
    """Why it is not measured."""
    place: tuple[int, int] | None = None
    """Its run of trials, and its candidate there, which points with one batch share."""

    @property
    def step_seconds(self) -> float | None:
        """The median of its steps; None if not measured."""
        return None if self.score is None else self.score.step_seconds

    @property
    def rate(self) -> float | None:
        """Samples a second; None if not measured."""
        seconds = self.step_seconds
        return self.train / seconds if seconds else None

    @property
    def problem(self) -> str | None:
        """Why there is no measurement; None if there is one."""
        if self.refused is not None or self.step_seconds is not None:
            return self.refused
        failure = None if self.score is None else self.score.failure
        if failure is None:
            return "not measured"
        return f"{(failure.kind or 'failed').replace('_', ' ')}: {brief(failure.reason or '')}"


@dataclass
class Scaling:
    """All points; `Scaling.measure` fills in what was measured."""

    base: Compiled
    points: list[ScalePoint]
    runs: list[CompiledRun]
    """A run of trials for each number of ranks."""
    names: list[str] = dataclasses.field(default_factory=list)
    interrupted: bool = False
    left: tuple[str, ...] = ()
    """Jobs that an interrupt has left behind."""
    completed: bool = True

    @property
    def compiled(self) -> Compiled:
        """The experiment of all runs of trials."""
        name = f"{self.base.name}-{NAME}"
        return dataclasses.replace(self.base, name=name, runs=tuple(self.runs), prerequisites=())

    def measure(self, argv: Sequence[str], say: Say) -> None:
        """Make the trials, for the fewest ranks first."""

        def told(place: int, record: TrialRecord) -> None:
            if record.round == trial_log.FINAL and record.step_seconds:
                points = [one for one in self.points if one.place == (place, record.candidate)]
                kinds = " and ".join(dict.fromkeys(one.kind for one in points))
                ranks = plural(points[0].ranks, "rank")
                say(f"{ranks}, {kinds}: {record.step_seconds:.4g} s a step")

        done = trial_run.bring_to_end(self.compiled, argv, say, told)
        self.interrupted, self.completed = done.interrupted, done.completed
        self.left = done.left
        self.names = [f"{done.experiment.name}/{number}" for number in done.numbers]
        # Of each number of ranks there is a candidate for either kind, or one for both.
        scores = [trial_log.scores(records, 2) for records in done.records]
        for at, one in enumerate(self.points):
            if one.place is not None:
                run, candidate = one.place
                self.points[at] = dataclasses.replace(one, score=scores[run][candidate])

    def efficiency(self, point: ScalePoint) -> float | None:
        """Return samples a second of a rank, as a part of those with the fewest ranks."""
        first = self.first(point.kind)
        if first is None or first.rate is None or point.rate is None:
            return None
        return (point.rate / point.ranks) / (first.rate / first.ranks)

    def speed_up(self, point: ScalePoint) -> float | None:
        """Return samples a second, as a multiple of those with the fewest ranks."""
        first = self.first(point.kind)
        if first is None or first.rate is None or point.rate is None:
            return None
        return point.rate / first.rate

    def first(self, kind: str) -> ScalePoint | None:
        """Return the measured point with the fewest ranks."""
        measured = [one for one in self.points if one.kind == kind and one.rate is not None]
        return min(measured, key=lambda one: one.ranks, default=None)

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        return {
            "experiment": f"{self.base.name}-{NAME}",
            "runs": self.names,
            "interrupted": self.interrupted,
            "points": [
                {
                    "kind": one.kind,
                    "nodes": one.nodes,
                    "ranks": one.ranks,
                    "train_batch_size": one.train,
                    "micro_batch": one.micro,
                    "step_seconds": one.step_seconds,
                    "steps": [] if one.score is None else list(one.score.steps),
                    "samples_per_second": one.rate,
                    "speed_up": self.speed_up(one),
                    "efficiency": self.efficiency(one),
                    "problem": one.problem,
                }
                for one in self.points
            ],
        }


def plan(
    spec: str,
    overrides: Sequence[str],
    nodes: Sequence[int],
    ranks: Sequence[int],
    root: Path | None,
) -> Scaling:
    """Compile the runs; nothing is started.

    Parameters
    ----------
    nodes, ranks
        Numbers of nodes, or of ranks of a node; one of the two is empty.

    Raises
    ------
    UsageError
        The program cannot be tried, or no number of ranks suits it.
    """
    base = compile_spec(spec, overrides, root=root)
    base = dataclasses.replace(base, runs=base.runs[:1])
    own = base.runs[0]
    trial_run.check(base)
    trial_candidates.fixed_batch(own)
    numbers = sorted({*(nodes or ranks)})
    if not 1 <= len(numbers) <= _MOST:
        raise UsageError(f"found {len(numbers)} numbers; accepted are 1 to {_MOST}")
    points: list[ScalePoint] = []
    runs: list[CompiledRun] = []
    for number in numbers:
        keys = [f"resources.nodes={number}"] if nodes else _ranks(own, number)
        found: dict[int, CompiledRun] = {}
        for kind in (STRONG, WEAK):
            point, run = _point(spec, overrides, own, keys, kind, root)
            if run is not None:
                found.setdefault(point.train, run)
                place = len(runs), [*found].index(point.train)
                point = dataclasses.replace(point, place=place)
            points.append(point)
        if found:
            candidates = tuple(SpacePoint({}, run).candidate for run in found.values())
            one = TrialPlan(
                candidates, slower=math.inf, finalists=len(candidates), final_steps=_STEPS
            )
            first = next(iter(found.values()))
            label = f"{'nodes' if nodes else 'ranks'}={number}"
            runs.append(trial_run.with_trials(first, one, label))
    if not runs:
        raise UsageError("no number of ranks suits the spec", hint=points[0].refused)
    return Scaling(base, points, runs)


def _ranks(own: CompiledRun, number: int) -> list[str]:
    """Return the overrides for so many ranks on each node."""
    keys = []
    if own.resources.gpus_per_node:
        keys.append(f"resources.gpus_per_node={number}")
    if own.resources.ntasks_per_node or not own.resources.gpus_per_node:
        keys.append(f"resources.ntasks_per_node={number}")
    return keys


def _point(
    spec: str,
    overrides: Sequence[str],
    own: CompiledRun,
    keys: Sequence[str],
    kind: str,
    root: Path | None,
) -> tuple[ScalePoint, CompiledRun | None]:
    """Return a point and its run; None where it cannot be compiled."""
    values = [one.partition("=")[::2] for one in keys]
    of = {key: int(value) for key, value in values}
    nodes = of.get("resources.nodes", own.nodes)
    per_node = next((n for key, n in of.items() if key != "resources.nodes"), own.ranks_per_node)
    ranks, train = nodes * per_node, int(own.deepspeed[batch.TRAIN])
    if kind == WEAK:
        train = train * ranks // own.world_size
    # The ranks that see different samples are as large a part of all as in the spec.
    micro, accumulation = own.deepspeed[batch.MICRO], own.deepspeed[batch.ACCUMULATION]
    copies = int(own.deepspeed[batch.TRAIN]) // (micro * accumulation)
    share = max(1, train * own.world_size // max(1, copies * ranks))
    micro = max(one for one in range(1, micro + 1) if share % one == 0)
    point = ScalePoint(kind, nodes, ranks, train, micro)
    sizes = [f"deepspeed.{batch.TRAIN}={train}", f"deepspeed.{batch.MICRO}={micro}"]
    sizes.append(f"deepspeed.{batch.ACCUMULATION}=auto")
    try:
        compiled = compile_spec(spec, [*overrides, *keys, *sizes], root=root)
    except HpcrunError as error:
        refused = trial_candidates.refusal(error)
        return dataclasses.replace(point, refused=refused), None
    return point, compiled.runs[0]


def render(found: Scaling, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the page: one HTML file that loads nothing; ElementTree escapes what it holds."""
    html = Element("html", {"lang": "en"})
    head = SubElement(html, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    title = f"{found.base.name}: scaling"
    SubElement(head, "title").text = title
    SubElement(head, "style").text = _STYLE
    body = SubElement(html, "body")
    SubElement(body, "h1").text = title
    body.append(chart(found))
    note = "Efficiency: samples a second of a rank, as a part of those with the fewest ranks."
    SubElement(body, "p").text = note
    table = SubElement(body, "table")
    for cells, kind in ((headers, "th"), *((row, "td") for row in rows)):
        line = SubElement(table, "tr")
        for cell in cells:
            SubElement(line, kind).text = cell
    indent(body)
    return PAGE_MARK + tostring(html, encoding="unicode", method="html") + "\n"


def chart(found: Scaling) -> Element:
    """Draw efficiency against the number of ranks, strong and weak, and the ideal."""
    label = "efficiency against the number of ranks"
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": label}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    ranks = sorted({one.ranks for one in found.points})
    values = [found.efficiency(one) for one in found.points]
    top = max(1.0, *(value for value in values if value is not None), 0.0) * 1.1
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(number: int) -> float:
        return _LEFT + wide * (ranks.index(number) + 0.5) / len(ranks)

    def y(value: float) -> float:
        return _TOP + high * (1 - value / top)

    for percent in range(0, int(top * 100) + 1, 25):
        at = f"{y(percent / 100):.1f}"
        kind = "ideal" if percent == 100 else "grid"
        ends = {"x1": str(_LEFT), "x2": str(_WIDTH - _RIGHT), "y1": at, "y2": at}
        SubElement(svg, "line", {**ends, "class": kind})
        _text(svg, _LEFT - 8, y(percent / 100) + 4, f"{percent} %", "end")
    for number in ranks:
        _text(svg, x(number), _HEIGHT - _BOTTOM + 18, str(number), "middle")
    _text(svg, _LEFT + wide / 2, _HEIGHT - 8, "ranks", "middle")
    for place, kind in enumerate((STRONG, WEAK)):
        ways = [one for one in found.points if one.kind == kind]
        measured = [(one, part) for one in ways if (part := found.efficiency(one)) is not None]
        corners = " ".join(f"{x(one.ranks):.1f},{y(part):.1f}" for one, part in measured)
        if measured:
            SubElement(svg, "polyline", {"points": corners, "class": kind})
        for one, part in measured:
            spot = {"cx": f"{x(one.ranks):.1f}", "cy": f"{y(part):.1f}", "r": "4", "class": kind}
            dot = SubElement(svg, "circle", spot)
            SubElement(dot, "title").text = f"{one.ranks} ranks, {kind}: {part:.0%}"
        _text(svg, _LEFT + 10 + 70 * place, _TOP - 4, kind, "start").set("class", kind)
    return svg


def _text(parent: Element, x: float, y: float, words: str, anchor: str) -> Element:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    found = SubElement(parent, "text", place)
    found.text = words
    return found
