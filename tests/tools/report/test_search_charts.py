"""What a report shows of a search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.state import chosen_point
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH
from hpcrun.tools.report import page as rendered
from hpcrun.tools.report import report as observed
from hpcrun.tools.report import search_charts
from hpcrun.tools.report.report import Report
from tests.support.experiment import TRAIN, Experiment
from tests.tools.report.page import Page
from tests.tools.report.study import EVIL

LOSSES = (4.0, 5.0, 2.0, 3.0, math.nan, 1.0)


def parts(svg: str, name: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter() if one.tag == name]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A search of eight trials, one of which was pruned and one without a value; two are left."""
    found = Experiment(tmp_path, "study")
    objective = {"metric": "loss", "mode": "min"}
    found.submit(range(8), spec={SEARCH: {}, "objective": objective}, job_id=None)
    for number, loss in enumerate(LOSSES):
        swept: dict[str, Any] = {
            "config.lr": 10.0 ** -(number + 1),
            "config.kind": (EVIL, "b")[number % 2],
        }
        point = ChosenPoint(f"lr={swept['config.lr']}", swept, {}, TRAIN)
        chosen_point.write(found.run(number), point)
        found.start(number)
        found.metrics(number, 1, [1, 2], loss=loss)
        how: dict[str, Any] = {"kind": "pruned", "message": "m"} if number == 1 else {}
        found.end(number, 1, "pruned" if how else "completed", **how)
    grid = Experiment(tmp_path, "grid")
    swept_of = {number: {"config.lr": 0.1 * number} for number in (1, 2)}
    grid.submit((1, 2), swept=swept_of, spec={"objective": objective}, job_id=None)
    for number in (1, 2):
        grid.start(number)
        grid.metrics(number, 1, [1], loss=number)
        grid.end(number)
    return tmp_path


def report(root: Path, *where: str) -> Report:
    return observed.collect(Finder(root).resolve(list(where)))


def test_the_drawings_of_a_search(root: Path) -> None:
    (found,) = search_charts.draw(report(root, "study", "grid"))
    assert found.experiment == "study"
    assert found.sentence == "8 trials: 5 completed, 1 pruned, 2 left"
    history = ElementTree.fromstring(found.history)
    assert history.get("aria-label") == (
        "The best loss so far, over 5 trials with a value: from 4 to 1, reached by trial 5"
    )
    dots = parts(found.history, "circle")
    assert [dot.get("class") for dot in dots] == ["point", "point part", "point", "point", "point"]
    assert dots[1].findtext("title") == "study/1 (pruned), lr=0.01: loss 5"
    (line,) = parts(found.history, "path")
    # Down at trials 2 and 5, and level between them.
    assert str(line.get("d")).startswith("M")
    assert [name for name, _ in found.slices] == ["lr", "kind"]
    lr, kind = (chart for _, chart in found.slices)
    assert len(parts(lr, "circle")) == len(parts(kind, "circle")) == 5
    assert "0.001" in [text.text for text in parts(lr, "text")]  # a power of ten
    lines = parts(found.parallel, "path")
    assert len(lines) == 5
    assert lines[-1].get("class") == "line c0 best"
    assert str(lines[-1].findtext("title")).startswith("study/5 (completed)")
    words = [text.text for text in parts(found.parallel, "text")]
    assert {"lr", "kind", "loss"} <= set(words)


def test_the_page_has_them_and_escapes_what_they_say(root: Path) -> None:
    html = rendered.render(report(root, "study"))
    assert EVIL not in html
    page = Page(html)
    assert "8 trials: 5 completed, 1 pruned, 2 left." in page.text
    assert ("section", {"id": "searches", "aria-labelledby": "searches-title"}) in page.elements
    labels = [given.get("aria-label") or "" for name, given in page.elements if name == "svg"]
    assert sum("loss against" in label for label in labels) >= 2
    assert any(label.startswith("Parameters and loss of 5 trials") for label in labels)


@pytest.mark.parametrize("where", ["grid", "study/6-7"])
def test_what_has_none(root: Path, where: str) -> None:
    """A plain sweep, and a search of which nothing is known yet."""
    found = report(root, where)
    assert [*search_charts.draw(found)] == []
    assert 'id="searches"' not in rendered.render(found)
