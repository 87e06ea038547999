"""The report in a real Chromium: it is used as a person would, offline."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.state import files
from hpcrun.tools.report import live_server, page
from hpcrun.tools.report.page import render
from hpcrun.tools.report.report import collect
from tests.support import filter_cases
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.tools.report.browser import Browser, browser
from tests.tools.report.study import EVIL, department, diverged, finetune, hostile
from tests.tools.report.test_svg import CASES

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"


def write(directory: Path, name: str = "finetune") -> Path:
    """The report of an experiment, by the command."""
    file = directory / f"{name}.html"
    path = path_with(directory / "shim")
    done = hpcrun("report", name, "-o", str(file), root=directory / "root", env={"PATH": path})
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("twenty")
    finetune(directory)
    return write(directory)


@pytest.fixture
def opened(window: Browser, report: Path) -> Iterator[Browser]:
    """The report of 20 runs of 500 points, as it is at first; nothing may go wrong in it."""
    window.requested()
    window.open(report)
    yield window
    assert window.errors() == []
    assert [url for url in window.requested() if not url.startswith("file://")] == []


def runs(window: Browser) -> list[str]:
    """The rows of the results that are shown."""
    return window.texts("#results-table tbody th")


def drawn(window: Browser) -> str:
    """What the chart says that it is."""
    return str(window.one(".curve-chart").get_attribute("aria-label"))


def canvas(window: Browser) -> str:
    """The pixels of the chart."""
    window.settle()
    return str(window.script("return document.querySelector('.curve-chart canvas').toDataURL()"))


def metrics(window: Browser, *names: str) -> None:
    """Choose the metrics to draw."""
    for chip in window.all("#curve-metrics button"):
        if (chip.get_attribute("aria-pressed") == "true") != (chip.text in names):
            chip.click()
    window.settle()


def hover(window: Browser, share: float) -> list[str]:
    """What is told where the pointer meets a curve, at this share of the chart's width."""
    from selenium.webdriver import ActionChains

    over = window.one(".curve-chart .u-over")
    window.script("arguments[0].scrollIntoView({block: 'center'})", over)
    width, height = over.size["width"], over.size["height"]
    for down in range(-height // 2 + 10, height // 2, 40):
        ActionChains(window.driver, duration=0).move_to_element_with_offset(
            over, int((share - 0.5) * width), down
        ).perform()
        if told := window.all(".curve-chart .tooltip"):
            return str(told[0].text).splitlines()
    raise AssertionError("no curve was met")


@pytest.fixture(scope="module")
def search(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 40 runs of which one diverged by 10^6."""
    directory = tmp_path_factory.mktemp("forty")
    diverged(directory)
    return write(directory, "search")


def heights(window: Browser) -> dict[str, tuple[float, float]]:
    """Run -> from where to where its curve is seen, in parts of the plot's height from its foot.

    Each curve is drawn thickly as it is pointed at, and its pixels are read.
    """
    found: dict[str, tuple[float, float]] = window.script(
        """
        const over = document.querySelector('.curve-chart .u-over');
        const chart = document.querySelector('.curve-chart');
        const overlay = over.querySelector('.overlay');
        chart.focus();
        const key = (name) => chart.dispatchEvent(new KeyboardEvent('keydown', { key: name }));
        const found = {};
        key('ArrowRight');
        for (let turn = 0; turn < 60; turn++) {
          const { width, height } = overlay;
          const copy = new OffscreenCanvas(width, height)
            .getContext('2d', { willReadFrequently: true });
          copy.drawImage(overlay, 0, 0);
          const pixels = copy.getImageData(0, 0, width, height).data;
          const rows = [];
          for (let y = 0; y < height; y++) for (let x = 0; x < width; x++)
            if (pixels[4 * (y * width + x) + 3]) { rows.push(1 - (y + 0.5) / height); break; }
          const name = over.querySelector('.tooltip b').textContent;
          if (name in found) break;
          found[name] = [Math.min(...rows), Math.max(...rows)];
          key('ArrowDown');
        }
        key('Escape');
        return found;"""
    )
    return found


def test_one_run_that_diverged_does_not_flatten_the_others(window: Browser, search: Path) -> None:
    window.open(search)
    window.one("#draw-these").click()
    window.settle()
    assert drawn(window).startswith("loss against step of 40 runs")

    def used() -> float:
        others = [span for name, span in heights(window).items() if name != "search/17"]
        assert len(others) == 39
        return max(high for _, high in others) - min(low for low, _ in others)

    assert window.one(".curve-chart .beyond").text == "1 of 40 runs beyond; click to see all"
    assert used() > 0.85
    clipped = canvas(window)
    window.one(".curve-chart .beyond").click()
    assert window.one(".curve-chart .beyond").text.startswith("All shown; leave out")
    assert used() < 0.05
    window.one(".curve-chart .beyond").click()
    assert canvas(window) == clipped
    window.set("#curve-scale", "log")
    assert window.one(".curve-chart .beyond").text == "1 of 40 runs beyond; click to see all"
    assert used() > 0.5
    assert window.errors() == []


def test_points_far_from_the_rest_lie_on_the_edge(window: Browser, search: Path) -> None:
    window.open(search)
    window.set("#scatter-y", "loss")

    def spread(selector: str, attribute: str) -> float:
        text = "return [...document.querySelectorAll(arguments[0])].map((one) => one.getBBox())"
        boxes = window.script(text, selector)
        return float(max(one[attribute] for one in boxes) - min(one[attribute] for one in boxes))

    for place, points in (("scatter", "circle:not(.beyond)"), ("parallel", "path")):
        told = window.one(f"#{place} .beyond")
        assert told.text == "1 of 40 runs beyond; click to see all"
        if place == "scatter":
            assert len(window.all("#scatter circle.beyond")) == 1
            assert spread(f"#scatter {points}", "y") > 130
        told.click()
        assert window.one(f"#{place} .beyond").text.startswith("All shown; ")
    assert spread("#scatter circle:not([data-run='17'] *)", "y") < 20
    assert window.errors() == []


def test_the_table_shows_all_its_rows(window: Browser, search: Path) -> None:
    window.open(search)
    hidden = (
        "const box = document.querySelector('#results-table').parentElement;"
        "return box.scrollHeight - box.clientHeight"
    )
    assert len(runs(window)) == 40
    assert window.script(hidden) <= 0
    window.set("#filter-text", "lr>=1e-4", "input")
    assert f"{len(runs(window))} of 40" in window.one("#results-pages").text
    # The head stays in sight.
    window.script("document.querySelector('#results-table tbody tr:last-child').scrollIntoView()")
    window.set("#filter-text", "", "input")
    window.script("document.querySelector('[aria-label=\"Draw search/30\"]').scrollIntoView()")
    head = window.script("return document.querySelector('#results-table th').getClientRects()[0].y")
    assert 0 <= head < 40


def test_steps_have_whole_ticks(window: Browser, tmp_path: Path) -> None:
    slurm_shim(tmp_path / "shim")
    study = Experiment(tmp_path / "root")
    study.submit()
    study.start()
    study.metrics(0, 1, range(1, 4), loss=lambda step: 1 / step)
    file = write(tmp_path, "study")
    window.open(file)
    window.script(
        "window.said = []; const draw = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {"
        "  window.said.push(text); return draw.call(this, text, ...rest); }"
    )
    window.set("#curve-scale", "linear")
    said = window.script("return window.said")
    assert [text for text in said if re.fullmatch(r"[0-9.]+", text)][:4] == ["1", "2", "3", "0.4"]
    assert re.findall(r">([\d.]+)</text>", file.read_text().partition("<figure>")[2])[-3:] == [
        *("1", "2", "3")
    ]


def test_two_experiments_side_by_side(window: Browser, tmp_path: Path) -> None:
    diverged(tmp_path)
    diverged(tmp_path, name="wider", wild=(), config={"width": 512})
    file = tmp_path / "both.html"
    done = hpcrun(*("report", "search", "wider", "-o", str(file)), root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    window.open(file)
    assert window.texts("#compared thead th") == ["experiment", "search", "wider"]
    rows = dict(
        zip(
            window.texts("#compared tbody th"),
            window.texts("#compared tbody td:last-child"),
            strict=True,
        )
    )
    assert rows["runs"] == "40 completed"
    assert rows["config.width"] == "512"
    assert rows["the best run"].startswith("wider/")
    assert "name" not in rows
    assert "config.lr" not in rows

    def labels() -> list[str]:
        return [str(one.get_attribute("aria-label")) for one in window.all(".curve-chart")]

    # The best six of each, beside each other, on the same axes.
    assert [label.split(";")[0] for label in labels()] == [
        f"{name}: loss against step of 6 runs" for name in ("search", "wider")
    ]
    window.one("#draw-these").click()
    assert [label.split(";")[0] for label in labels()] == [
        f"{name}: loss against step of 40 runs" for name in ("search", "wider")
    ]
    assert window.texts(".curve-chart .beyond") == ["1 of 80 runs beyond; click to see all"]
    first = {name: span for name, span in heights(window).items() if name != "search/17"}
    assert len(first) == 39
    assert max(high for _, high in first.values()) - min(low for low, _ in first.values()) > 0.5
    window.set("#curve-colour-by", "experiment")
    assert window.texts("#curve-legend li") == ["experiment = search", "experiment = wider"]
    window.set("#curve-beside-each-other", "")
    assert [label.split(";")[0] for label in labels()] == ["loss against step of 80 runs"]
    assert window.errors() == []


def test_all_experiments_on_a_page(window: Browser, tmp_path: Path) -> None:
    root = department(tmp_path, 130, runs=1)
    file = tmp_path / "all.html"
    done = hpcrun("report", "*", "-o", str(file), root=root)
    assert done.returncode == 0, done.stderr
    window.open(file)
    assert len(window.texts("#experiment tbody tr")) == 100
    assert "page 1 of 2" in window.one("#experiment-pages").text
    window.all("#experiment thead button")[0].click()
    assert window.texts("#experiment tbody th")[:2] == ["study-0000", "study-0001"]
    window.set("#experiment-filter", "1 FAILED study-002", "input")
    assert window.texts("#experiment tbody th") == ["study-0021", "study-0028"]
    assert {*window.texts("#causes tbody th")} == {"hang", "rank_crash"}
    over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.script(over) <= 0
    bars = "return [...document.querySelectorAll('#month td svg')].map((one) => one.clientWidth)"
    assert min(window.script(bars)) > 100
    assert window.errors() == []


def test_a_scale_is_logarithmic_where_values_span_decades(window: Browser, search: Path) -> None:
    window.open(search)
    metrics(window, "grads")
    low, high = next(iter(heights(window).values()))
    assert low < 0.05
    assert high > 0.95
    automatic = canvas(window)
    window.set("#curve-scale", "log")
    assert canvas(window) == automatic
    window.set("#curve-scale", "linear")
    assert canvas(window) != automatic


def test_it_is_light_and_opens_offline(opened: Browser, report: Path) -> None:
    assert report.stat().st_size < 400_000
    assert len(runs(opened)) == 20
    assert drawn(opened).startswith("eval/loss against step of 19 runs")


def test_the_table_sorts(opened: Browser) -> None:
    best = [
        one for one in opened.all("#results-table thead button") if one.text == "eval/loss.best"
    ]
    best[0].click()
    order = runs(opened)
    column = opened.texts("#results-table thead th").index("eval/loss.best") + 1
    values = opened.texts(f"#results-table tbody td:nth-child({column})")
    known = [float(value) for value in values if value]
    assert known == sorted(known)
    assert order[-1] == "finetune/19"  # has none
    best[0].click()
    assert runs(opened)[:-1] == order[:-1][::-1]
    assert best[0].find_element("xpath", "..").get_attribute("aria-sort") == "descending"
    opened.all("#results-table thead button")[0].click()
    assert runs(opened) == [f"finetune/{run}" for run in range(20)]


def test_the_table_filters(opened: Browser) -> None:
    search = opened.one("#filter-text")
    search.send_keys("Failed")
    assert runs(opened) == ["finetune/11"]
    assert opened.texts("#timeline-rows a") == ["finetune/11"]
    assert "1 of 20" in opened.one("#results-pages").text
    search.clear()
    opened.set("#filter-text", "", "input")
    labels = {one.text.split("\n")[0]: one for one in opened.all("#filters label")}
    rate = labels["config.lr"].find_element("css selector", "select")
    for option in rate.find_elements("css selector", "option"):
        if option.text == "2e-05":
            option.click()
    assert runs(opened) == [f"finetune/{run}" for run in range(8, 12)]


def test_runs_are_selected(opened: Browser) -> None:
    opened.one("#draw-none").click()
    assert "No run that is drawn has values" in opened.one("#curve-charts").text
    opened.one("[aria-label='Draw finetune/8']").click()
    opened.one("[aria-label='Draw finetune/3']").click()
    assert drawn(opened).startswith("eval/loss against step of 2 runs")
    opened.one("#filter-text").send_keys("lr=2e-05")
    assert drawn(opened).startswith("eval/loss against step of 1 runs")
    opened.one("#draw-these").click()
    assert drawn(opened).startswith("eval/loss against step of 4 runs")
    opened.one("#filter-reset").click()
    assert drawn(opened).startswith("eval/loss against step of 19 runs")
    assert len(runs(opened)) == 20


def test_a_point_tells_its_run_and_values(opened: Browser, report: Path) -> None:
    opened.one("#draw-none").click()
    opened.one("[aria-label='Draw finetune/8']").click()
    metrics(opened, "loss")
    name, label, step, tokens, after, loss = hover(opened, 0.6)
    assert (name, label) == ("finetune/8", "lr=2e-05,warmup=100,seed=0")
    number = int(step.removeprefix("step ").replace(",", ""))
    assert 2_900 <= number <= 3_100
    run = report.parent / "root" / "finetune" / "runs" / "8" / "attempts" / "1"
    [logged] = [one for one in files.read_lines(run / "metrics.jsonl") if one["step"] == number]
    assert float(loss.removeprefix("loss ")) == pytest.approx(logged["loss"], rel=1e-4)
    assert tokens == f"tokens {number * 1_048_576:,}"
    assert re.fullmatch(r"after 7\.\d+ hours", after)
    opened.set("#curve-smoothing", "0.9", "input")
    *same, smoothed = hover(opened, 0.6)
    assert same == [name, label, step, tokens, after, loss]
    assert smoothed.startswith("smoothed 1.")


def test_scales_and_smoothing_draw_anew(opened: Browser) -> None:
    metrics(opened, "loss")
    seen = [canvas(opened)]
    opened.set("#curve-scale", "log")
    seen.append(canvas(opened))
    opened.set("#curve-scale", "auto")
    assert canvas(opened) == seen[0]
    opened.set("#curve-smoothing", "0.9", "input")
    seen.append(canvas(opened))
    opened.set("#curve-smoothing", "0", "input")
    assert canvas(opened) == seen[0]
    for across in ("tokens", "time"):
        opened.set("#curve-against", across)
        assert drawn(opened).startswith(f"loss against {across} of 19 runs")
        seen.append(canvas(opened))
    assert len(set(seen)) == 5


def test_a_drag_zooms_and_a_double_click_shows_all(opened: Browser) -> None:
    from selenium.webdriver import ActionChains

    before = canvas(opened)
    over = opened.one(".curve-chart .u-over")
    opened.script("arguments[0].scrollIntoView({block: 'center'})", over)
    drag = ActionChains(opened.driver, duration=20).move_to_element_with_offset(over, -100, -100)
    drag.click_and_hold().move_by_offset(150, 120).release().perform()
    opened.wait(lambda: canvas(opened) != before)
    ActionChains(opened.driver, duration=0).double_click(
        opened.one(".curve-chart .u-over")
    ).perform()
    opened.wait(lambda: canvas(opened) == before)


def test_telemetry_of_a_chosen_run(opened: Browser) -> None:
    assert len(opened.all("#telemetry-charts canvas")) == 9
    first = opened.script("return document.querySelector('#telemetry-charts canvas').toDataURL()")
    opened.set("#telemetry-run", "15")
    assert first != opened.script(
        "return document.querySelector('#telemetry-charts canvas').toDataURL()"
    )
    assert "GPU power, all of a node's GPUs (W)" in opened.one("#telemetry-charts").text


def test_print_shows_the_drawings_and_everything_told(opened: Browser) -> None:
    opened.emulate("print")
    assert len(opened.all("svg.chart")) == 4
    assert opened.all("#filters, .curve-chart, #parameters, nav, .copy") == []
    opened.script("dispatchEvent(new Event('beforeprint'))")
    assert len(opened.all("#runs .attempts")) == 19
    pdf = opened.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(pdf) > 50_000
    opened.emulate()


def test_without_javascript(window: Browser, report: Path) -> None:
    window.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        window.driver.get(report.as_uri())
        assert len(runs(window)) == 20
        assert len(window.all("svg.chart")) == 4
        assert len(window.all("#timeline-rows svg")) == 19
        assert window.all(".js") == []
        window.one("#run-finetune\\/7 summary").send_keys("\n")
        assert "rank 5 on node07 was killed by signal 9" in window.one("#run-finetune\\/7").text
    finally:
        window.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_nothing_of_a_user_becomes_markup(window: Browser, tmp_path: Path) -> None:
    slurm_shim(tmp_path / "shim")
    hostile(Experiment(tmp_path / "root"))
    window.open(write(tmp_path, "study"))
    assert drawn(window).startswith(f"{EVIL} against step of 2 runs")
    assert {f"{EVIL} 1", "step 4"} < set(hover(window, 0.45))
    assert window.script("return document.querySelectorAll('img').length") == 0
    assert window.errors() == []


def test_a_thousand_runs(window: Browser, tmp_path: Path) -> None:
    finetune(tmp_path, runs=1_000, points=50, telemetry=False)
    file = write(tmp_path)
    seconds = {"open": window.open(file)}
    assert len(runs(window)) == 100
    assert "page 1 of 10" in window.one("#results-pages").text
    assert "of 12 runs" in drawn(window)
    click = "document.querySelectorAll('#results-table thead button')[1].click()"
    seconds["sort"] = window.timed(click)
    seconds["draw all"] = window.timed("document.getElementById('draw-these').click()")
    assert "of 949 runs" in drawn(window)
    assert hover(window, 0.5)[0].startswith("finetune/")
    field = "const field = document.getElementById('filter-text'); field.value = 'seed=97'"
    seconds["filter"] = window.timed(f"{field}; field.dispatchEvent(new Event('input'))")
    assert 0 < len(runs(window)) < 100
    assert window.one("#relations-said").text == ""
    window.one("#filter-reset").click()
    count = "return document.querySelectorAll(arguments[0]).length"
    assert window.script(count, "#scatter circle") == window.script(count, "#parallel path") == 800
    assert "the 800 best of 949 runs" in window.one("#relations-said").text
    assert window.errors() == []
    print(seconds, file.stat().st_size)
    assert seconds.pop("open") < 15
    assert max(seconds.values()) < 3


def test_the_filter_speaks_the_language_of_where(opened: Browser) -> None:
    def chosen(text: str) -> set[int]:
        opened.set("#filter-text", text, "input")
        assert opened.one("#filter-said").text == ""
        return {int(name.partition("/")[2]) for name in runs(opened)}

    every = set(range(20))
    assert chosen("lr>=5e-5 and warmup=100") == {12, 13, 16, 17}
    assert chosen("lr >= 5e-5 warmup = 100 and not seed=0") == {13, 17}
    assert chosen("warmup=100,seed=0") == {0, 4, 8, 12, 16}
    assert chosen("state=failed or (lr=0.00001 and attempts>1)") == {7, 11}
    assert chosen("cause=non_finite_loss") == {11}
    assert chosen("metric.eval/loss<1.68") == {8, 9, 10} & chosen("eval/loss<1.68")
    assert chosen("state!=completed") == {11, 18, 19}
    assert chosen("finetune/3-4,9") == {3, 4, 9}
    assert chosen("*/1?") == set(range(10, 20))
    assert chosen("fine*") == every
    assert chosen("'running'") == {18}
    assert chosen("metric.loss=null") == {19}
    assert chosen("metric.lr<1e-9") == chosen("state=completed")  # the one that is logged
    assert chosen("") == every


def test_the_filter_answers_as_hpcrun_does(window: Browser) -> None:
    """The cases of tests/observe/read/test_filter.py, put to the script itself."""
    script = (ROOT / "templates" / "report" / "filter.js").read_text()
    swept = {key: None for values in filter_cases.SWEPT.values() for key in values}
    columns: list[dict[str, Any]] = [
        {"key": key, "swept": True, "known": [row.get(key) for row in filter_cases.SWEPT.values()]}
        for key in swept
    ]
    for column in columns:  # As `page_data` writes them.
        column["known"] = [page._plain(v) if v is not None else v for v in column["known"]]
    facts = {
        **filter_cases.FACTS,
        **{"run.tag": filter_cases.TAGS, "run.note": filter_cases.NOTES},
    }
    columns += [{"key": key, "fact": True, "known": known} for key, known in facts.items()]
    columns += [
        {"key": name, "metric": True, "known": [row.get(name) for row in filter_cases.METRICS]}
        for name in ("loss", "eval/acc", "lr")
    ]
    cases = filter_cases.CASES + filter_cases.SEARCHES
    numbers = list(filter_cases.SWEPT)
    answers = window.script(
        script
        + """
        const [given, numbers, texts, asked] = arguments;
        const columns = given.map((one) => ({ ...one, of: (run) => one.known[run] }));
        const names = numbers.map((run) => `study/${run}`);
        return asked.map((text) => {
          try {
            return numbers.filter(parseFilter(text, columns, names, texts));
          } catch (error) {
            return error.message;
          }
        });""",
        columns,
        numbers,
        [filter_cases.text(run).lower() for run in numbers],
        [text for text, _ in cases],
    )
    for (text, expected), answer in zip(cases, answers, strict=True):
        if expected is filter_cases.WRONG:
            assert isinstance(answer, str), text
        else:
            assert answer == expected, text


def test_a_filter_that_means_nothing_says_why_and_changes_nothing(opened: Browser) -> None:
    opened.set("#filter-text", "warmup=100", "input")
    for text, why in {
        "rate=3": "no key ends in rate; there are config.lr, config.warmup, config.seed, ",
        "los=": "after los= comes a value",
        "lr>high": "after lr> comes a number, not high",
        "(lr=1": "a bracket is not closed",
        "state=failed or": "a condition is missing at the end",
        "per_second": "",
        "first>1": "",
    }.items():
        opened.set("#filter-text", text, "input")
        told = opened.one("#filter-said").text
        assert told.startswith(why)
        assert bool(told) is bool(why)
        assert (opened.one("#filter-text").get_attribute("aria-invalid") == "true") is bool(why)
        if why:
            assert len(runs(opened)) == 10
            assert told.endswith("The runs are those of the filter before.")


def test_the_filter_filters_all_that_is_drawn(opened: Browser) -> None:
    opened.set("#filter-text", "lr=2e-5", "input")
    assert drawn(opened).startswith("eval/loss against step of 4 runs")
    four = [f"finetune/{run}" for run in range(8, 12)]
    assert opened.texts("#timeline-rows a") == four
    assert len(opened.all("#scatter circle")) == len(opened.all("#parallel path")) == 4
    told = "return [...document.querySelectorAll('details.run:not([hidden])')].map((one) => one.id)"
    assert opened.script(told) == [f"run-{name}" for name in four]


def test_several_metrics_at_once(opened: Browser) -> None:
    metrics(opened, "eval/loss", "loss", "lr")
    labels = [one.get_attribute("aria-label") for one in opened.all(".curve-chart")]
    assert [label.split(" of ")[0] for label in labels] == [
        f"{name} against step" for name in ("eval/loss", "loss", "lr")
    ]
    tops = {round(one.rect["y"]) for one in opened.all(".curve-chart")}
    assert len(tops) == 2  # small multiples, two beside each other
    told = hover(opened, 0.5)
    assert told[-1].startswith("eval/loss ")
    painted = "return [...document.querySelectorAll('.overlay')].map((one) => one.width > 0)"
    assert opened.script(painted) == [True, True, True]  # the same run is marked in all
    metrics(opened)
    assert "Choose a metric" in opened.one("#curve-charts").text


def test_colours_tell_a_parameter(opened: Browser) -> None:
    assert len(opened.texts("#curve-legend li")) == 19
    assert "finetune/8 lr=2e-05,warmup=100,seed=0, the best" in opened.texts("#curve-legend li")
    before = canvas(opened)
    opened.set("#curve-colour-by", "config.lr")
    legend = opened.texts("#curve-legend li")
    assert legend == [f"lr = {rate}" for rate in ("5e-6", "1e-5", "2e-5", "5e-5", "1e-4")]
    colour = "return getComputedStyle(arguments[0]).backgroundColor"
    swatches = [opened.script(colour, one) for one in opened.all("#curve-legend .swatch")]
    assert len(set(swatches)) == 5
    rows = [opened.script(colour, one) for one in opened.all("#results-table tbody .swatch")]
    assert rows[:19] == [swatches[run // 4] for run in range(19)]
    fills = "return [...document.querySelectorAll('#scatter circle')].map((one) => one.style.fill)"
    assert set(opened.script(fills)) == set(swatches)
    coloured = canvas(opened)
    assert coloured != before
    opened.all("#curve-legend button")[2].click()
    assert canvas(opened) != coloured  # the others are faint
    pressed = opened.all("#curve-legend button[aria-pressed=true]")
    assert [one.text for one in pressed] == [legend[2]]
    pressed[0].click()
    assert canvas(opened) == coloured


def test_means_over_seeds_with_bands(opened: Browser) -> None:
    opened.set("#filter-text", "lr=2e-5 warmup=100", "input")
    metrics(opened, "loss")
    opened.set("#curve-mean-over", "config.seed")
    assert drawn(opened).startswith("loss against step of 2 runs, 1 means")
    entry, band = opened.texts("#curve-legend li")
    assert entry == "finetune lr=2e-5 warmup=100 (mean of 2)"
    assert "least to the greatest" in band
    name, _, mean, span = hover(opened, 0.6)
    assert name == "finetune lr=2e-5 warmup=100"
    low, high = map(float, re.findall(r"\d\.\d+", span))
    assert low <= float(mean.removeprefix("mean loss ")) <= high
    assert span.endswith("2 of 2 runs")
    with_band = canvas(opened)
    opened.set("#curve-mean-over", "")
    assert canvas(opened) != with_band


def test_a_repeated_sweep_begins_with_means(window: Browser, tmp_path: Path) -> None:
    finetune(tmp_path, runs=8, points=50, telemetry=False, repeats=["config.seed"])
    window.open(write(tmp_path))
    assert window.one("#curve-mean-over").get_attribute("value") == "sweep.repeat"
    assert drawn(window).startswith("eval/loss against step of 7 runs, 4 means")


def test_results_against_parameters(opened: Browser) -> None:
    result = opened.one("#scatter-y")
    assert result.get_attribute("value") == "eval/loss.best"
    points = opened.all("#scatter circle")
    assert len(points) == len(opened.all("#parallel path")) == 19
    assert len(opened.all("#scatter .point.best")) == len(opened.all("#parallel .run.best")) == 1
    best = opened.one("#scatter a[data-run='8']")
    assert re.fullmatch(
        r"finetune/8, lr=2e-05,warmup=100,seed=0, eval/loss.best 1\.\d+, the best",
        best.get_attribute("aria-label"),
    )
    assert "lr (log scale)" in opened.texts("#scatter text")
    columns = {round(point.rect["x"]) for point in points}
    assert len(columns) <= 6  # five rates; the best run's point is wider
    opened.set("#scatter-x", "config.warmup")
    opened.set("#scatter-y", "tokens_per_second")
    assert {"100", "500", "warmup", "tokens_per_second"} <= set(opened.texts("#scatter text"))
    best = opened.one("#scatter a[data-run='8']")
    opened.script("arguments[0].focus()", best)
    best.send_keys("\n")
    opened.wait(lambda: opened.one("#run-finetune\\/8").get_attribute("open"))


def importance(window: Browser) -> dict[str, str]:
    """Key -> what is said of how much it explains, in the order shown."""
    return dict(
        zip(
            window.texts("#importance button"),
            window.texts("#importance div > span:last-child"),
            strict=True,
        )
    )


def test_which_parameters_explain_a_result(window: Browser, search: Path) -> None:
    window.open(search)
    window.set("#scatter-y", "loss")
    said = importance(window)
    assert [*said] == ["lr", "seed"]
    assert 40 <= int(said["lr"].removesuffix(" %")) <= 95
    assert re.fullmatch(r"\d+ %, no more than chance \(up to \d+ %\)", said["seed"])
    lengths = "return [...document.querySelectorAll('.share')].map((one) => one.offsetWidth)"
    lr, seed = window.script(lengths)
    assert seed < lr / 2
    window.all("#importance button")[1].click()
    assert window.one("#scatter-x").get_attribute("value") == "config.seed"
    window.set("#filter-text", "search/0-8", "input")
    told = "Of 9 runs with loss nothing can be told: 10 or more are wanted."
    assert window.one("#importance").text == told
    assert window.errors() == []


def test_the_share_of_the_variance_of_ranks(window: Browser) -> None:
    """Against what is known by hand and from scipy.stats.kruskal: H / (n - 1) is eta squared."""
    scripts = [
        (ROOT / "templates" / "report" / name).read_text()
        for name in ("tables.js", "importance.js")
    ]
    script = "\n".join(scripts) + "const isNumber = Number.isFinite;"
    cases: list[tuple[list[float], list[Any], float | None]] = [
        ([*range(12)], [*"aaaaaabbbbbb"], 1 - (35 / 10) / (143 / 11)),
        ([*range(12)], [*"abababababab"], 0.0),
        ([1.0] * 12, [*"aaaaaabbbbbb"], 0.0),
        ([*range(20)], [*range(20)], 1 - (25 / 15) / (665 / 19)),  # in fifths
        ([*range(12)], [*"abcdefghijkl"], None),  # a value for each run
        ([*range(9)], [*"aaaabbbbb"], None),
        ([*range(12)], ["a"] * 12, None),
        ([*range(11), 1e9], [*"aaaaaabbbbbb"], 1 - (35 / 10) / (143 / 11)),  # by ranks
    ]
    answers = window.script(
        script + "return arguments[0].map((each) => importanceOf(...each)?.share ?? null);",
        [case[:2] for case in cases],
    )
    for (results, values, expected), answer in zip(cases, answers, strict=True):
        assert answer == (None if expected is None else pytest.approx(expected)), (results, values)


def test_keys_read_a_curve(opened: Browser) -> None:
    opened.set("#filter-text", "finetune/8-9", "input")
    chart = opened.one(".curve-chart")
    opened.script("arguments[0].focus()", chart)

    def said(key: str) -> str:
        chart.send_keys(key)
        return str(opened.one("#curve-said").get_attribute("textContent"))

    from selenium.webdriver.common.keys import Keys

    assert said(Keys.ARROW_RIGHT).startswith("finetune/8, lr=2e-05,warmup=100,seed=0, step 250, ")
    assert ", step 500, " in said(Keys.ARROW_RIGHT)
    assert said(Keys.ARROW_DOWN).startswith("finetune/9, lr=2e-05,warmup=100,seed=1, step 500, ")
    assert ", step 5,000, " in said(Keys.END)
    assert len(opened.all(".curve-chart .tooltip")) == 1
    said(Keys.ESCAPE)
    assert opened.all(".curve-chart .tooltip") == []


def test_everything_has_a_name(opened: Browser) -> None:
    """Each control says what it is to who does not see it."""
    nameless = opened.script(
        "return [...document.querySelectorAll('input, select, button, a, [tabindex]')].filter("
        "(one) => one.checkVisibility() && !(one.ariaLabel || one.innerText || one.textContent || "
        "one.labels?.[0]?.innerText || one.getAttribute('aria-labelledby')))"
        ".map((one) => one.outerHTML)"
    )
    assert nameless == []
    heads = "return [...document.querySelectorAll('th:not(.u-legend th)')]"
    assert opened.script(f"{heads}.every((one) => one.scope)")


def test_a_digest_is_short_and_copied_whole(opened: Browser) -> None:
    assert opened.texts(".digest code") == ["3f9c2d1e8a7b", "9e107d9d372b"]
    opened.driver.execute_cdp_cmd(
        "Browser.setPermission", {"permission": {"name": "clipboard-write"}, "setting": "granted"}
    )
    copy = opened.all(".digest button")[0]
    assert copy.get_attribute("aria-label") == "Copy 3f9c2d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d"
    copy.click()
    whole = "3f9c2d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d"
    opened.wait(lambda: copy.text == "copied" or whole in opened.texts(".digest code"))


@pytest.mark.parametrize("width", [420, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_and_no_scheme_breaks_it(
    opened: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    opened.emulate(prefers_color_scheme=scheme)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        metrics(opened, "eval/loss", "loss")
        opened.set("#curve-colour-by", "config.lr")
        over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert opened.script(over) <= 0
        charts = [one.rect["width"] for one in opened.all(".curve-chart")]
        assert all(250 < wide < width for wide in charts)
        paper = opened.script("return getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
        for section in ("results", "failures", "curves", "parameters", "cost", "code"):
            opened.script(f"document.getElementById('{section}').scrollIntoView()")
            file = tmp_path / f"{section}-{width}-{scheme}.png"
            opened.picture(file)
            assert file.stat().st_size > 5_000
    finally:
        opened.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.emulate()


@pytest.mark.parametrize("width", [1032, 700])  # A4, landscape and upright
def test_heads_do_not_break_inside_words_in_print(opened: Browser, width: int) -> None:
    opened.emulate("print")
    size = {"width": width, "height": 720, "deviceScaleFactor": 1, "mobile": False}
    opened.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert opened.script(over) <= 0
        lines = opened.script(
            "return [...document.querySelectorAll('#results-table thead th')].map((head) => {"
            "const range = document.createRange(); const found = [];"
            "const walk = document.createTreeWalker(head, NodeFilter.SHOW_TEXT);"
            "while (walk.nextNode()) { range.selectNodeContents(walk.currentNode);"
            "found.push(range.getClientRects().length); } return Math.max(...found); })"
        )
        assert set(lines) == {1}  # each part of a name is on one line
    finally:
        opened.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.emulate()


def test_a_served_page_follows_its_runs(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = finetune(tmp_path, runs=6, points=50, telemetry=False)
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))

    def make() -> bytes:
        found = collect(Finder(tmp_path / "root").resolve(["finetune"]))
        return render(found, 0.2).encode()

    server = live_server.LiveReport(make, make())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        window.online(True)
        window.driver.get(server.address)
        window.wait(lambda: window.texts("#results-table tbody th"))
        window.one("#filter-text").send_keys("warmup=100 state=running")
        metrics(window, "loss", "lr")
        window.set("#curve-smoothing", "0.5", "input")
        assert runs(window) == ["finetune/4"]
        study.metrics(4, 1, range(400, 402), loss=0.125)
        study.end(4, 1, "failed", kind="rank_crash", message="rank 5 on node07 was killed")
        server.page, server.number = make(), 2
        window.wait(lambda: runs(window) == [])
        assert window.one("#filter-text").get_attribute("value") == "warmup=100 state=running"
        window.set("#filter-text", "warmup=100 cause=rank_crash", "input")
        assert runs(window) == ["finetune/4"]
        assert len(window.all(".curve-chart")) == 2
        assert window.one("#curve-smoothing").get_attribute("value") == "0.5"
        assert "rank 5 on node07 was killed" in window.one("#failures").text
        assert window.one("#live-status").text.startswith("live, looked at ")
        assert window.errors() == []
    finally:
        server.shutdown()
        server.server_close()
    window.wait(lambda: window.one("#live-status").text.startswith("Not live since "))
    assert window.all("#live-status button")
    window.online(False)
    window.errors()


def test_screenshots(opened: Browser, tmp_path: Path) -> None:
    """Those in docs/images are taken anew where UPDATE_SCREENSHOTS=1."""
    directory = IMAGES if os.environ.get("UPDATE_SCREENSHOTS") == "1" else tmp_path
    opened.picture(directory / "report.png")
    opened.script("document.querySelector('#timeline').scrollIntoView()")
    opened.picture(directory / "report-timeline.png")
    opened.one("#filter-text").send_keys("warmup=100,seed=0")
    metrics(opened, "loss")
    opened.set("#curve-smoothing", "0.8", "input")
    opened.emulate(prefers_color_scheme="dark")
    opened.settle()
    hover(opened, 0.35)
    opened.picture(directory / "report-curves-dark.png")
    opened.emulate()
    for name in ("report-curves-dark.png", "report-timeline.png", "report.png"):
        assert 10_000 < (directory / name).stat().st_size < 150_000


def test_screenshots_of_one_run_that_diverged_and_of_all(
    window: Browser, search: Path, tmp_path: Path
) -> None:
    """Light and dark; those in docs/images as above."""
    directory = IMAGES if os.environ.get("UPDATE_SCREENSHOTS") == "1" else tmp_path
    root = department(tmp_path, 300)
    every = tmp_path / "all.html"
    assert hpcrun("report", "*", "-o", str(every), root=root).returncode == 0
    for scheme, ending in (("light", ""), ("dark", "-dark")):
        window.emulate(prefers_color_scheme=scheme)
        window.open(search)
        window.one("#draw-these").click()
        window.set("#curve-colour-by", "config.lr")
        hide = "document.getElementById('curve-legend').style.display = 'none'"
        window.script(f"{hide}; document.querySelector('.curve-chart').scrollIntoView()")
        window.settle()
        chart = window.one(".curve-chart")
        assert chart.screenshot(str(directory / f"report-outlier{ending}.png"))
        window.open(every)
        window.picture((directory if scheme == "light" else tmp_path) / f"report-all{ending}.png")
    window.emulate()
    for name in ("outlier", "outlier-dark", "all"):
        assert 10_000 < (directory / f"report-{name}.png").stat().st_size < 150_000
    assert window.errors() == []


def test_charts_and_drawings_for_print_have_the_same_axes(window: Browser) -> None:
    """The cases of tests/tools/report/test_svg.py, put to the script itself."""
    script = (ROOT / "templates" / "report" / "axes.js").read_text()
    cases = [lines for lines, _ in CASES.values()]
    answers = window.script(script + "return arguments[0].map((lines) => fit(lines));", cases)
    for name, (low, high, log, beyond), answer in zip(
        CASES, (expected for _, expected in CASES.values()), answers, strict=True
    ):
        assert (answer["low"], answer["high"]) == pytest.approx((low, high)), name
        assert bool(answer["log"]) is log, name
        assert [at for at, one in enumerate(answer["beyond"]) if one] == beyond, name
