"""Drawings that need no JavaScript."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.diagnosis.goodput import Span
from hpcrun.tools.report import svg as drawings
from hpcrun.tools.report.curves import Column
from hpcrun.tools.report.svg import ChartLine, ChartPoint, TimelineMark, fit

SCRIPT = '</script><img src=x onerror="alert(1)">'


def parts(svg: str, name: str = "path") -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter() if one.tag == name]


def test_a_chart_has_a_line_a_run_and_round_ticks() -> None:
    lines = [
        ChartLine(f"e/{n}", n, Column([10, 20, 30], [3.0, 2.0 - n / 40, 1.0])) for n in range(12)
    ]
    svg = drawings.chart("loss against step", lines)
    drawn = parts(svg)
    assert [one.get("class") for one in drawn[9:]] == ["line c9", "line c0", "line c1"]
    assert [one.get("stroke-dasharray") for one in drawn[9:]] == [None, "6 3", "6 3"]
    assert [one.findtext("title") for one in drawn][:2] == ["e/0", "e/1"]
    assert drawn[0].get("d") == "M600 100l3200 1150 3200 1150"
    words = [one.text for one in parts(svg, "text")]
    assert {"1", "2", "3", "10", "20", "30", "step"} <= set(words)


@pytest.mark.parametrize(
    "column",
    [
        Column([7], [1.0]),
        Column([1, 2], [0.0, 0.0]),
        Column([1, 2], [-9e299, 9e299]),
        Column([1, 2], [5e-324, 1e-323]),
        Column([10**15, 10**15 + 1], [1e-9, 1.000000000000001e-9]),
    ],
    ids=["one point", "no height", "huge", "tiny", "hardly any height"],
)
def test_odd_values_can_be_drawn(column: Column) -> None:
    [drawn] = parts(drawings.chart("odd", [ChartLine("e/0", 0, column)]))
    assert re.fullmatch(r"M-?\d+ -?\d+l[\d -]+", drawn.get("d", ""))


@pytest.mark.parametrize(
    ("across", "results", "places"),
    [
        ([1, 2, 3], [1.0, 2.0, 3.0], ["79.2", "380.0", "680.8"]),
        ([0.001, 0.01, 0.1], [1.0, 2.0, 3.0], ["79.2", "380.0", "680.8"]),  # logarithmic
        (["a", True, None], [1.0, 2.0, 3.0], ["166.7", "380.0", "593.3"]),
        ([5, 5, 5], [1.0, 1.0, 1.0], ["380.0"] * 3),
        ([-1e299, 0.0, 1e299], [5e-324, 0.0, 1e-323], ["79.2", "380.0", "680.8"]),
    ],
    ids=["numbers", "decades", "choices", "one value", "odd"],
)
def test_points_lie_where_their_values_are(
    across: list[object], results: list[float], places: list[str]
) -> None:
    points = [ChartPoint(x, y, f"e/{x}", "point") for x, y in zip(across, results, strict=True)]
    svg = drawings.scatter("loss against lr", "lr", points)
    dots = parts(svg, "circle")
    assert [dot.get("cx") for dot in dots] == places
    assert [dot.findtext("title") for dot in dots] == [f"e/{x}" for x in across]


def test_an_outlier_lies_at_the_edge_and_is_told() -> None:
    points = [ChartPoint(n, 1.0 + n / 10, "", "point") for n in range(20)]
    svg = drawings.scatter("t", "n", [*points, ChartPoint(20, 1e9, "", "point")])
    assert "1 of 21 beyond" in [one.text for one in parts(svg, "text")]
    assert parts(svg, "circle")[-1].get("cy") == "10.0"


def test_lines_from_axis_to_axis() -> None:
    """The best is drawn last, over the others; a value that is not there leaves its axis out."""
    axes = [("lr", [0.1, 0.2]), ("depth", [None, 3]), ("loss", [1.0, 2.0])]
    drawn = parts(drawings.parallel("all", axes, ["best", "other"]))
    assert [one.findtext("title") for one in drawn] == ["other", "best"]
    assert [len(re.findall(r"-?\d+", one.get("d", ""))) for one in drawn] == [6, 4]
    assert drawn[-1].get("class") == "line c0 best"


def test_values_that_no_axis_of_numbers_has() -> None:
    """A choice of which all runs had null, and one of numbers that are infinite or none."""
    axes = [("a", [None, None]), ("b", [math.inf, 1.0]), ("c", [math.nan, 2]), ("loss", [1.0, 2.0])]
    drawn = parts(drawings.parallel("all", axes, ["best", "other"]))
    assert [len(re.findall(r"-?\d+", one.get("d", ""))) for one in drawn] == [6, 6]
    points = [ChartPoint(x, 1.0, "", "point") for x in (math.inf, 1.0, None)]
    assert len(parts(drawings.scatter("t", "n", points), "circle")) == 3


def test_what_a_drawing_says_is_escaped() -> None:
    chart = drawings.chart(SCRIPT, [ChartLine(SCRIPT, 0, Column([1, 2], [1.0, 2.0]))])
    bar = drawings.timeline(
        SCRIPT, [Span("useful", 0, 9, 1)], [TimelineMark(5, "failed", SCRIPT)], 0, 9, True
    )
    points = drawings.scatter(SCRIPT, SCRIPT, [ChartPoint(SCRIPT, 1.0, SCRIPT, "point")])
    for svg in (chart, bar, points):
        assert "<img" not in svg
        assert "</script" not in svg
        assert SCRIPT in "".join(ElementTree.fromstring(svg).itertext())


def test_a_timeline_tells_what_happened_when() -> None:
    spans = [
        Span("queued", 0, 100, 1),
        Span("useful", 100, 400, 1),
        Span("idle", 400, 420, 1),
        Span("useful", 420, 1000, 2),
    ]
    mark = TimelineMark(420, "failed", "Attempt 1 failed, rank_crash: it fell over.")
    drawn = parts(drawings.timeline("e/0", spans, [mark], 0, 1000, True))
    assert [one.get("class") for one in drawn] == [
        *("k-queued", "k-useful", "k-idle", "k-useful", "end failed")
    ]
    assert drawn[1].get("d") == "M50 0h150v16h-150z"
    assert drawn[1].findtext("title") == "attempt 1, useful: 5 min in all"
    assert drawn[4].findtext("title") == mark.text
    untold = parts(drawings.timeline("e/0", spans, [mark], 0, 1000, False))
    assert [one.findtext("title") for one in untold] == [*[None] * 4, mark.text]


def test_thousands_of_attempts_make_one_small_bar() -> None:
    spans, marks = [], []
    for attempt in range(5_000):
        at = 100.0 * attempt
        spans += [Span("startup", at, at + 40, attempt), Span("useful", at + 40, at + 100, attempt)]
        marks.append(TimelineMark(at + 100, "failed", f"attempt {attempt} failed"))
    svg = drawings.timeline("e/0", spans, marks, 0, 500_000, False)
    assert len(parts(svg)) <= 1_000
    assert "attempt 4999 failed (and 10 more here)" in svg


@given(st.lists(st.tuples(st.sampled_from(["useful", "idle"]), st.floats(0.01, 50)), max_size=60))
def test_a_bar_covers_the_time_and_nothing_twice(drawn: list[tuple[str, float]]) -> None:
    spans, at = [], 0.0
    for kind, seconds in drawn:
        spans.append(Span(kind, at, at + seconds, 1))
        at += seconds
    reached = 0.0
    for part in parts(drawings.timeline("e/0", spans, [], 0, at, False)):
        found = re.fullmatch(r"M([\d.]+) 0h([\d.]+)v16h-([\d.]+)z", part.get("d", ""))
        assert found is not None
        assert float(found[1]) == reached
        reached += float(found[2])
    assert reached >= 499 or not spans
    assert reached <= 500


def test_shares_of_a_whole() -> None:
    drawn = parts(drawings.shares("all", [("useful", 3.0), ("queued", 1.0), ("idle", 0.0)]))
    assert [one.get("d") for one in drawn[:2]] == ["M0 0h375v16h-375z", "M375 0h125v16h-125z"]


def test_a_run_far_beyond_the_others_is_told_and_cut_off() -> None:
    steps = [*range(1, 21)]
    lines = [
        ChartLine(f"run {run}", run, Column(steps, [run + step / 10 for step in steps]))
        for run in range(10)
    ]
    wild = ChartLine("wild", 10, Column(steps, [1e6 * step for step in steps]))
    told = drawings.chart("loss", [*lines, wild])
    assert "1 of 11 runs beyond" in told
    assert "beyond" not in drawings.chart("loss", lines)
    tops = [
        int(re.match(r"M600 ?(-?\d+)", one.get("d", ""))[1])  # type: ignore[index]
        for one in parts(told)
    ]
    assert max(tops[:-1]) - min(tops[:-1]) > 1_800  # of 2,300 tenths
    assert -10_000 < tops[-1] < 0


def test_values_over_decades_have_ticks_at_powers_of_ten() -> None:
    steps = [*range(1, 21)]
    line = ChartLine("one", 0, Column(steps, [10.0 ** (2 - step / 4) for step in steps]))
    texts = [text.text for text in parts(drawings.chart("lr", [line]), "text")]
    assert texts[:5] == ["0.001", "0.01", "0.1", "1", "10"]


FLAT = [1.0 + step / 100 for step in range(40)]
DECAY = [2 + 9 * math.exp(-step / 5) for step in range(100)]
DECADES = [10 ** (3 - step / 10) for step in range(40)]
RUNS = [[value + run / 100 for value in FLAT] for run in range(39)]

# Lines; the least and greatest value shown, whether the scale is logarithmic, lines beyond.
CASES = {
    "nothing": ([], (0.0, 1.0, False, [])),
    "one value": ([[3.0]], (3.0, 3.0, False, [])),
    "one run": ([FLAT], (1.0, 1.39, False, [])),
    "a line without values": ([FLAT, []], (1.0, 1.39, False, [])),
    "one of forty runs diverged": (
        [*RUNS, [1e6 * value for value in FLAT]],
        (1.0, 1.77, False, [39]),
    ),
    "half of its points did": (
        [*RUNS, [*FLAT[:20], *(1e6 * value for value in FLAT)]],
        (1.0, 1.77, False, [39]),
    ),
    "downwards": ([*RUNS, [-1e6, *FLAT]], (1.0, 1.77, False, [39])),
    "one of three": ([RUNS[0], RUNS[1], [1e6] * 9], (1.0, 1.4, False, [2])),
    "of two nobody knows which": ([FLAT, [-2e6] * 40], (-2e6, 1.39, False, [])),
    "a spike of a single run": ([[*FLAT, 1e4]], (1.0, 1.39, False, [0])),
    "the fall of a loss is no outlier": ([DECAY], (min(DECAY), 11.0, False, [])),
    "twice the others is none": ([*RUNS, [2 * value for value in FLAT]], (1.0, 2.78, False, [])),
    "decades": ([DECADES], (DECADES[-1], 1e3, True, [])),
    "decades, and one of many far beyond": (
        [*([DECADES] * 20), [1e300] * 40],
        (DECADES[-1], 1e3, True, [20]),
    ),
    "zero has no logarithm": ([[0.0, *DECADES]], (0.0, 1e3, False, [])),
    "points of a scatter": (
        [[1.0 + p / 40] for p in range(39)] + [[5e3]],
        (1.0, 1.95, False, [39]),
    ),
    "all the same but one": ([[1.0]] * 20 + [[2.0]], (1.0, 2.0, False, [])),
    "no further than a number goes": ([[-1e299], [1e299]], (-1e299, 1e299, False, [])),
}


@pytest.mark.parametrize("case", CASES)
def test_fit(case: str) -> None:
    lines, (low, high, log, beyond) = CASES[case]
    found = fit(lines)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.log is log
    assert [place for place, is_beyond in enumerate(found.beyond) if is_beyond] == beyond


def test_a_share_of_the_axis() -> None:
    linear, logarithmic = fit([FLAT]), fit([DECADES])
    assert linear.share(1.0) == 0
    assert linear.share(1.39) == pytest.approx(1)
    assert linear.share(1.78) == pytest.approx(2)
    assert logarithmic.share(math.sqrt(DECADES[0] * DECADES[-1])) == pytest.approx(0.5)
