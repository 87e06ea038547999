"""The page of a scaling: its drawing, and what it holds of others' text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import tostring

from hpcrun.tools.perf import scaling_page
from hpcrun.tools.perf.on_nodes.trial_log import FINAL, MEASURED, TrialRecord, TrialScore
from hpcrun.tools.perf.scaling import STRONG, WEAK, ScalePoint, Scaling


def _point(kind: str, ranks: int, train: int, seconds: float | None) -> ScalePoint:
    steps = () if seconds is None else (seconds,)
    record = TrialRecord(0, FINAL, MEASURED, 0.0, steps)
    return ScalePoint(kind, 1, ranks, train, 1, TrialScore((record,)))


def _scaling(*points: ScalePoint) -> Scaling:
    base: Any = SimpleNamespace(name="<b>fine")
    return Scaling(base, list(points), [])


def test_efficiency_is_that_of_a_rank_against_the_fewest_ranks() -> None:
    strong = [_point(STRONG, 1, 16, 1.0), _point(STRONG, 4, 16, 0.5)]
    weak = [_point(WEAK, 2, 8, None), _point(WEAK, 4, 16, 1.0), _point(WEAK, 8, 32, 1.25)]
    found = _scaling(*strong, *weak)
    assert [found.speed_up(one) for one in strong] == [1.0, 2.0]
    assert [found.efficiency(one) for one in strong] == [1.0, 0.5]
    # The first of the weak ones was not measured: the next one is what others are compared with.
    assert [found.efficiency(one) for one in weak] == [None, 1.0, 0.8]
    assert weak[0].problem == "not measured"


def test_the_page_shows_each_measurement_and_escapes_names() -> None:
    found = _scaling(_point(STRONG, 1, 16, 1.0), _point(STRONG, 4, 16, 0.5))
    page = scaling_page.render(found, ("A", "B"), [("1", "<i>")])
    assert page.startswith(scaling_page.MARK)
    assert "<b>" not in page
    assert "&lt;i&gt;" in page
    assert "4 ranks, strong: 50%" in page
    drawing = tostring(scaling_page.chart(found), encoding="unicode")
    assert drawing.count("<circle") == 2
    assert "src=" not in page
    empty = _scaling(_point(WEAK, 2, 8, None))
    assert "<circle" not in tostring(scaling_page.chart(empty), encoding="unicode")
