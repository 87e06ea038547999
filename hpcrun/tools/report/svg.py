"""The drawings of a report for print and for pages without JavaScript.

Elements are made by ElementTree, which escapes what they hold; colours are the style sheet's. What
an axis shows (`fit`) templates/report/axes.js chooses alike for the charts of scripts; a test puts
the same cases to both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from hpcrun.observe.diagnosis.goodput import Span
from hpcrun.observe.tables import number
from hpcrun.text import shortened, time_spent
from hpcrun.tools.report.curves import Column

COLORS = 10
DASHES = ("", "6 3", "2 3")
POINTS = 1500

_WIDTH, _HEIGHT = 720.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 20.0, 10.0, 40.0

# Heights of a plot beyond which a curve is not drawn any further.
_FAR = 3.0

# From this ratio on a parameter's axis is logarithmic; what is free at each of its ends.
_LOG_FROM, _ROOM = 30.0, 0.03

# What is clipped would leave less than this part of the axis to the rest.
_PART = 1 / 4
# The decades that a logarithmic axis spans at least.
_DECADES = 2

# A bar's width, in cells of which each has one colour, and its height.
_CELLS, _BAR = 500, 16


@dataclass(frozen=True)
class Axis:
    """The range of values to show."""

    low: float
    high: float
    log: bool
    """The scale is logarithmic; all values are positive."""
    beyond: tuple[bool, ...]
    """Whether each line goes beyond the range."""

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high one, others outside."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return (at - low) / (high - low)


class ChartLine(NamedTuple):
    """A curve, and the place of its run, which chooses the colour."""

    name: str
    place: int
    column: Column


class ChartPoint(NamedTuple):
    """A run in a drawing of points; ``x`` is a number, or one of a few values of any kind."""

    x: Any
    y: float
    title: str
    style: str


class TimelineMark(NamedTuple):
    """An event of a run; its time in seconds since the epoch."""

    time: float
    kind: str
    text: str


def style_of(place: int) -> tuple[str, str]:
    """Return the class and the dashes of a run's curves."""
    return f"c{place % COLORS}", DASHES[place // COLORS % len(DASHES)]


def chart(title: str, lines: Sequence[ChartLine]) -> str:
    """Draw curves against the step."""
    svg = _svg(_WIDTH, _HEIGHT, title)
    svg.set("class", "chart")
    xs = [step for line in lines for step in line.column.steps]
    if not xs:
        return _serialized(svg)
    left, right = _range(xs)
    fitted = fit([line.column.values for line in lines])
    if not fitted.log:
        low, high = _range((fitted.low, fitted.high))
        fitted = replace(fitted, low=low, high=high)

    def x(value: float) -> float:
        return _LEFT + (value - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        share = min(max(fitted.share(value), -_FAR), _FAR)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    for tick in _decades(fitted) if fitted.log else _ticks(fitted.low, fitted.high, 5):
        at = y(tick)
        ends = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": at, "y2": at}
        _add(svg, "line", **ends).set("class", "grid")
        _text(svg, _LEFT - 6, at + 4, number(tick), "end")
    for tick in _ticks(left, right, 8, least=1):
        _text(svg, x(tick), _HEIGHT - _BOTTOM + 16, f"{tick:,.0f}", "middle")
    _text(svg, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "step", "middle")
    most = max(24, POINTS // len(lines))
    # Nothing is seen outside its own element: what goes beyond the plot ends at its edge.
    plot = {"y": f"{_TOP:g}", "width": f"{_WIDTH:g}", "height": f"{_HEIGHT - _TOP - _BOTTOM:g}"}
    inside = SubElement(svg, "svg", plot)
    inside.set("viewBox", f"0 {_TOP:g} {_WIDTH:g} {_HEIGHT - _TOP - _BOTTOM:g}")
    tenths = SubElement(inside, "g", {"transform": "scale(.1)"})
    for line in lines:
        name, dashes = style_of(line.place)
        thin = line.column.thin(most)
        points = [(x(at), y(value)) for at, value in zip(thin.steps, thin.values, strict=True)]
        drawn = SubElement(tenths, "path", {"d": _path(points), "class": f"line {name}"})
        if dashes:
            drawn.set("stroke-dasharray", dashes)
        SubElement(drawn, "title").text = line.name
    if count := sum(fitted.beyond):
        words = f"{count} of {len(lines)} runs beyond"
        _text(svg, _WIDTH - _RIGHT, _TOP + 12, words, "end")
    return _serialized(svg)


def scatter(
    title: str,
    across: str,
    points: Sequence[ChartPoint],
    line: Sequence[tuple[float, float]] = (),
) -> str:
    """Draw points, at least one, and perhaps a line through others, against a value ``across``."""
    svg = _svg(_WIDTH, _HEIGHT, title)
    svg.set("class", "chart")
    x = _scale([point.x for point in points], 8)
    y = _scale([point.y for point in points], 5, is_result=True)
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: Any, value: float) -> tuple[float, float]:
        return _LEFT + x.share(at) * wide, _HEIGHT - _BOTTOM - y.share(value) * high

    for share, text in y.ticks:
        at = _HEIGHT - _BOTTOM - share * high
        ends = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": at, "y2": at}
        _add(svg, "line", **ends).set("class", "grid")
        _text(svg, _LEFT - 6, at + 4, text, "end")
    for share, text in x.ticks:
        _text(svg, _LEFT + share * wide, _HEIGHT - _BOTTOM + 16, text, "middle")
    _text(svg, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, across, "middle")
    if line:
        tenths = SubElement(svg, "g", {"transform": "scale(.1)"})
        drawn = [place(*one) for one in line]
        SubElement(tenths, "path", {"d": _path(drawn), "class": "line c1"})
    for point in points:
        cx, cy = place(point.x, point.y)
        dot = _add(svg, "circle", cx=cx, cy=cy, r=4.0)
        dot.set("class", point.style)
        SubElement(dot, "title").text = point.title
    if count := sum(not 0.0 <= y.of(point.y) <= 1.0 for point in points):
        _text(svg, _WIDTH - _RIGHT, _TOP + 12, f"{count} of {len(points)} beyond", "end")
    return _serialized(svg)


def parallel(title: str, axes: Sequence[tuple[str, Sequence[Any]]], titles: Sequence[str]) -> str:
    """Draw runs, the best first, as lines from axis to axis; None is no value.

    The last axis is the result. A better run is drawn darker.
    """
    svg = _svg(_WIDTH, _HEIGHT, title)
    svg.set("class", "chart")
    side, top, bottom = _LEFT + 10, 30.0, _HEIGHT - 12
    scales = [
        _scale([one for one in values if one is not None], 5, is_result=values is axes[-1][1])
        for _, values in axes
    ]
    places = [side + at / (len(axes) - 1) * (_WIDTH - 2 * side) for at in range(len(axes))]
    tenths = SubElement(svg, "g", {"transform": "scale(.1)"})
    for run in range(len(titles) - 1, -1, -1):
        points = [
            (x, bottom - scale.share(values[run]) * (bottom - top))
            for x, scale, (_, values) in zip(places, scales, axes, strict=True)
            if values[run] is not None
        ]
        drawn = SubElement(tenths, "path", {"d": _path(points), "class": "line c0"})
        drawn.set("stroke-opacity", f"{1 - 0.85 * run / len(titles):.2f}")
        if run == 0:
            drawn.set("class", "line c0 best")
        SubElement(drawn, "title").text = titles[run]
    for x, scale, (name, _) in zip(places, scales, axes, strict=True):
        _add(svg, "line", x1=x, x2=x, y1=top, y2=bottom).set("class", "axis")
        _text(svg, x, 14, shortened(name, 24), "middle")
        for share, text in scale.ticks:
            _text(svg, x - 5, bottom - share * (bottom - top) + 4, text, "end")
    return _serialized(svg)


class _Scale(NamedTuple):
    """An axis of numbers, or of a few values of any kind."""

    of: Callable[[Any], float]
    """Where a value lies: 0 at the low end, 1 at the high one."""
    ticks: list[tuple[float, str]]

    def share(self, value: Any) -> float:
        """Return where a value is drawn: what lies outside, at the edge."""
        return min(max(self.of(value), 0.0), 1.0)


def _scale(values: Sequence[Any], about: int, *, is_result: bool = False) -> _Scale:
    """Return the axis of values; of results, outliers may lie beyond it."""
    are_numbers = all(type(value) in (int, float) and math.isfinite(value) for value in values)
    if not values or not are_numbers:
        names = [*dict.fromkeys(map(str, values))]
        places = {name: (at + 0.5) / len(names) for at, name in enumerate(names)}
        ticks = [(place, shortened(name, 12)) for name, place in places.items()]
        return _Scale(lambda value: places[str(value)], ticks)
    if is_result:
        fitted = fit([[value] for value in values])
    else:
        low, high = min(values), max(values)
        fitted = Axis(low, high, low > 0 and high / low >= _LOG_FROM, ())
    if not fitted.log:
        low, high = _range((fitted.low, fitted.high))
        fitted = replace(fitted, low=low, high=high)
    spread = 1 - 2 * _ROOM

    def of(value: float) -> float:
        if fitted.log and value <= 0:
            return 0.0
        return _ROOM + fitted.share(value) * spread

    least = 1.0 if all(type(value) is int for value in values) else 0.0
    found = _decades(fitted) if fitted.log else _ticks(fitted.low, fitted.high, about, least)
    return _Scale(of, [(of(tick), number(tick)) for tick in found])


def fit(lines: Sequence[Sequence[float]]) -> Axis:
    """Choose the axis of lines of finite values: where few of them would flatten the rest
    (which would have less than a quarter of the axis), that of the rest.

    The rest is what lies in the middle 80 % of the lines (of each line of 8 values or more, the
    middle 96 %), and no further than 1.5 times that range from it. Where all values are positive
    and span two decades, also without a tenth at each end, the scale is logarithmic.
    """
    known = [line for line in lines if line]
    if not known:
        return Axis(0.0, 1.0, False, ())
    if all(value > 0 for line in known for value in line):
        low, high = _middle([_inner(line, 10, 0.1) for line in known], 10)
        if high / low >= 10**_DECADES:
            bottom, top, beyond = _clip([[math.log10(value) for value in line] for line in known])
            if top - bottom >= _DECADES:
                return Axis(10**bottom, 10**top, True, _placed(lines, beyond))
    low, high, beyond = _clip(known)
    return Axis(low, high, False, _placed(lines, beyond))


def _clip(lines: Sequence[Sequence[float]]) -> tuple[float, float, list[bool]]:
    """Return the least and the greatest value to show, and which lines go beyond."""
    ends = [(min(line), max(line)) for line in lines]
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    low, high = _middle([_inner(line, 8, 0.02) for line in lines], 3)
    room = 1.5 * (high - low)
    inside = [value for line in lines for value in line if low - room <= value <= high + room]
    if high > low and min(inside) < max(inside):
        bottom, top = min(inside), max(inside)
        if (top - bottom) < _PART * (last - first):
            return bottom, top, [least < bottom or most > top for least, most in ends]
    return first, last, [False] * len(ends)


def _middle(ranges: Sequence[tuple[float, float]], few: int) -> tuple[float, float]:
    """Return the range without the tenth of the ranges that reach furthest, at each end."""
    low, _ = _inner([low for low, _ in ranges], few, 0.1)
    _, high = _inner([high for _, high in ranges], few, 0.1)
    return low, high


def _inner(values: Sequence[float], few: int, share: float) -> tuple[float, float]:
    """Return the range without a share of the values at each end; of ``few``, that of all."""
    ordered = sorted(values)
    out = 0 if len(ordered) < few else max(1, int(len(ordered) * share))
    return ordered[out], ordered[-1 - out]


def _placed(lines: Sequence[Sequence[float]], beyond: Sequence[bool]) -> tuple[bool, ...]:
    found = iter(beyond)
    return tuple(bool(line) and next(found) for line in lines)


def timeline(
    label: str,
    spans: Sequence[Span],
    marks: Sequence[TimelineMark],
    start: float,
    end: float,
    titles: bool,
) -> str:
    """Draw a run's spans and marks as a bar from ``start`` to ``end``.

    ``titles`` gives each span a title; the ``marks`` always have one.
    """
    svg = _bar(label)
    size = (end - start) / _CELLS or 1.0
    spent: dict[tuple[int | None, str], float] = {}
    for span in spans:
        key = (span.attempt, span.kind)
        spent[key] = spent.get(key, 0.0) + span.seconds
    for first, last, attempt, kind in _stretches(spans, start, size):
        part = _part(svg, f"k-{kind}", first, last - first)
        if titles:
            whose = "" if attempt is None else f"attempt {attempt}, "
            text = f"{whose}{kind}: {time_spent(spent[attempt, kind])} in all"
            SubElement(part, "title").text = text
    together: dict[int, list[TimelineMark]] = {}
    for mark in marks:
        cell = min(max(int((mark.time - start) / size), 0), _CELLS - 1)
        together.setdefault(cell, []).append(mark)
    for cell, here in together.items():
        more = f" (and {len(here) - 1} more here)" if len(here) > 1 else ""
        part = _part(svg, f"end {here[-1].kind}", cell, 1)
        SubElement(part, "title").text = here[-1].text + more
    return _serialized(svg)


def shares(label: str, parts: Iterable[tuple[str, float]], whole: float | None = None) -> str:
    """Draw parts of a whole as one bar; they are all of it unless it is given."""
    svg = _bar(label)
    parts = list(parts)
    whole = whole or sum(value for _, value in parts) or 1.0
    at = 0.0
    for kind, value in parts:
        width = value / whole * _CELLS
        _part(svg, f"k-{kind}", at, width)
        at += width
    return _serialized(svg)


def _decades(fitted: Axis) -> list[float]:
    """Return powers of ten on a logarithmic axis, not too many."""
    first, last = math.ceil(math.log10(fitted.low)), math.floor(math.log10(fitted.high))
    return [10.0**each for each in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]


def _ticks(low: float, high: float, about: int, least: float = 0.0) -> list[float]:
    """Return round numbers from ``low`` to ``high``, no less than ``least`` apart."""
    rough = max((high - low) / about, least)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _stretches(
    spans: Sequence[Span], start: float, size: float
) -> list[tuple[int, int, int | None, str]]:
    """Merge cells by what fills most of each: first cell, the one after the last, attempt, kind."""
    cells: dict[int, dict[tuple[int | None, str], float]] = {}
    for span in spans:
        first, last = (span.start - start) / size, (span.end - start) / size
        for cell in range(int(first), min(int(last), _CELLS - 1) + 1):
            found = cells.setdefault(cell, {})
            share = min(last, cell + 1.0) - max(first, float(cell))
            key = (span.attempt, span.kind)
            found[key] = found.get(key, 0.0) + share
    stretches: list[tuple[int, int, int | None, str]] = []
    for cell, found in sorted(cells.items()):
        if stretches and sum(found.values()) < 0.5:
            continue  # the end of the last span, which fills only a part of its cell
        most = max(found, key=lambda one: found[one])
        if stretches and stretches[-1][1:] == (cell, *most):
            stretches[-1] = (stretches[-1][0], cell + 1, *most)
        else:
            stretches.append((cell, cell + 1, *most))
    return stretches


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a line through points, to a tenth of a unit; a single point is a dot."""
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    (x, y), *rest = tenths
    moves = "".join(f"{b[0] - a[0]} {b[1] - a[1]} " for a, b in pairwise(tenths))
    return f"M{x} {y}l{(moves if rest else '1 0').rstrip()}".replace(" -", "-")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest, with room around values that are all the same."""
    low, high = min(values), max(values)
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-280):
        return low, high
    room = max(abs(low) / 2, 1e-12) if low else 1.0
    return low - room, low + room


def _bar(label: str) -> Element:
    svg = _svg(_CELLS, _BAR, label)
    svg.set("preserveAspectRatio", "none")
    return svg


def _part(bar: Element, name: str, start: float, width: float) -> Element:
    start, width = round(start, 1), round(width, 1)
    return SubElement(
        bar, "path", {"class": name, "d": f"M{start:g} 0h{width:g}v{_BAR}h-{width:g}z"}
    )


def _svg(width: float, height: float, label: str) -> Element:
    return Element(
        "svg", {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": label}
    )


def _add(parent: Element, name: str, **numbers: float) -> Element:
    return SubElement(parent, name, {key: f"{value:.1f}" for key, value in numbers.items()})


def _text(parent: Element, x: float, y: float, words: str, anchor: str) -> None:
    text = _add(parent, "text", x=x, y=y)
    text.set("text-anchor", anchor)
    text.text = words


def _serialized(svg: Element) -> str:
    return tostring(svg, encoding="unicode")
