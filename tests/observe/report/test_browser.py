"""The report in a real Chromium: it is used as a person would, offline."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.state import files
from tests.observe.report.browser import Browser, browser
from tests.observe.report.study import EVIL, finetune, hostile
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim

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
    return str(window.one("#curve-chart").get_attribute("aria-label"))


def canvas(window: Browser) -> str:
    """The pixels of the chart."""
    window.settle()
    return str(window.script("return document.querySelector('#curve-chart canvas').toDataURL()"))


def hover(window: Browser, share: float) -> list[str]:
    """What is told where the pointer meets a curve, at this share of the chart's width."""
    from selenium.webdriver import ActionChains

    over = window.one("#curve-chart .u-over")
    window.script("arguments[0].scrollIntoView({block: 'center'})", over)
    width, height = over.size["width"], over.size["height"]
    for down in range(-height // 2 + 10, height // 2, 40):
        ActionChains(window.driver, duration=0).move_to_element_with_offset(
            over, int((share - 0.5) * width), down
        ).perform()
        if told := window.all("#curve-tooltip"):
            return str(told[0].text).splitlines()
    raise AssertionError("no curve was met")


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
    draw_these, draw_none = opened.all("#filters button")
    draw_none.click()
    assert "No selected run has values" in opened.one("#curve-chart").text
    opened.one("[aria-label='Draw finetune/8']").click()
    opened.one("[aria-label='Draw finetune/3']").click()
    assert drawn(opened).startswith("eval/loss against step of 2 runs")
    opened.one("#filter-text").send_keys("lr=2e-05")
    draw_these.click()
    assert drawn(opened).startswith("eval/loss against step of 4 runs")


def test_a_point_tells_its_run_and_values(opened: Browser, report: Path) -> None:
    opened.all("#filters button")[1].click()
    opened.one("[aria-label='Draw finetune/8']").click()
    opened.set("#curve-metric", "1")
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
    opened.set("#curve-metric", "1")
    seen = [canvas(opened)]
    log = opened.one("#curve-log")
    log.click()
    seen.append(canvas(opened))
    log.click()
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
    over = opened.one("#curve-chart .u-over")
    opened.script("arguments[0].scrollIntoView({block: 'center'})", over)
    drag = ActionChains(opened.driver, duration=20).move_to_element_with_offset(over, -100, -100)
    drag.click_and_hold().move_by_offset(150, 120).release().perform()
    opened.wait(lambda: canvas(opened) != before)
    ActionChains(opened.driver, duration=0).double_click(
        opened.one("#curve-chart .u-over")
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
    assert opened.all("#filters, #curve-chart, nav") == []
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
    seconds["draw all"] = window.timed("document.querySelectorAll('#filters button')[0].click()")
    assert "of 949 runs" in drawn(window)
    assert hover(window, 0.5)[0].startswith("finetune/")
    field = "const field = document.getElementById('filter-text'); field.value = 'seed=97'"
    seconds["filter"] = window.timed(f"{field}; field.dispatchEvent(new Event('input'))")
    assert 0 < len(runs(window)) < 100
    assert window.errors() == []
    print(seconds, file.stat().st_size)
    assert seconds.pop("open") < 15
    assert max(seconds.values()) < 3


def test_screenshots(opened: Browser, tmp_path: Path) -> None:
    """Those in docs/images are taken anew where UPDATE_SCREENSHOTS=1."""
    directory = IMAGES if os.environ.get("UPDATE_SCREENSHOTS") == "1" else tmp_path
    opened.picture(directory / "report.png")
    opened.script("document.querySelector('#timeline').scrollIntoView()")
    opened.picture(directory / "report-timeline.png")
    opened.one("#filter-text").send_keys("warmup=100,seed=0")
    opened.all("#filters button")[0].click()
    opened.set("#curve-metric", "1")
    opened.set("#curve-smoothing", "0.8", "input")
    opened.emulate(prefers_color_scheme="dark")
    opened.settle()
    hover(opened, 0.35)
    opened.picture(directory / "report-curves-dark.png")
    opened.emulate()
    taken = sorted(directory.glob("report*.png"))
    assert [path.name for path in taken] == [
        *("report-curves-dark.png", "report-timeline.png", "report.png")
    ]
    assert all(10_000 < path.stat().st_size < 150_000 for path in taken)
