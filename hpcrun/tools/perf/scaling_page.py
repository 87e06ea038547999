"""The page of ``hpcrun scaling``: a drawing of efficiency and speed-up, and the table.

One HTML file that loads nothing; ElementTree escapes what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from hpcrun.tools.perf.scaling import STRONG, WEAK, Scaling

MARK = "<!DOCTYPE html>\n<!-- hpcrun scaling -->\n"
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


def render(found: Scaling, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the page."""
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
    return MARK + tostring(html, encoding="unicode", method="html") + "\n"


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
