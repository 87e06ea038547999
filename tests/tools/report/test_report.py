"""``hpcrun report`` as it is typed, and what is in the page that it writes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
from pathlib import Path

import pytest

from hpcrun import activity, resources
from hpcrun.observe.diagnosis.goodput import WORDS, Goodput
from hpcrun.observe.read import metric_curves, node_usage
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files, layout
from hpcrun.state.layout import RunPaths
from hpcrun.tools.report import page as rendered
from hpcrun.tools.report import report as observed
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, slurm_shim
from tests.support.waiting import until
from tests.tools.report.page import Page
from tests.tools.report.study import CRASH, EVIL, finetune, hostile


def report(directory: Path, *arguments: str) -> Page:
    """The page that the command writes."""
    file = directory / "page.html"
    done = hpcrun("report", *arguments, "-o", str(file), root=directory / "root")
    assert done.returncode == 0, done.stderr
    return Page(file.read_text())


def in_hours(cell: str) -> float:
    """The hours of ``12 min`` or ``3,654 h``."""
    if not cell:
        return 0.0
    value, unit = cell.removeprefix("<").split()
    return float(value.replace(",", "")) / {"s": 3600, "min": 60, "h": 1}[unit]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("study")
    finetune(directory)
    return directory


@pytest.fixture(scope="module")
def page(study: Path) -> Page:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path_with(study / "shim"))
        return report(study, "finetune")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """An experiment to which a test adds its own runs."""
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return Experiment(tmp_path / "root")


def test_twenty_runs_of_five_hundred_points_weigh_little(page: Page) -> None:
    assert len(page.html.encode()) < 400_000
    assert "of 60,000 logged values" not in page.text
    assert (
        sum(
            len(column.get("v", column.get("d")))
            for column in page.data["curves"]["columns"][1]
            if column
        )
        > 8_000
    )


def test_results_stand_in_a_table(page: Page) -> None:
    head = page.row("run")
    assert head[:7] == ["run", "config.lr", "warmup", "seed", "state", "attempts", "step"]
    assert {"eval/loss.first", "eval/loss", "eval/loss.best", "tokens_per_second"} <= set(head)
    crashed = dict(zip(head, page.row("finetune/7"), strict=True))
    assert (crashed["state"], crashed["attempts"], crashed["step"]) == ("completed", "2", "5000")
    assert [page.row(f"finetune/{run}")[4] for run in (11, 18, 19)] == [
        "failed",
        "running",
        "pending",
    ]


def test_whose_and_when(page: Page) -> None:
    assert re.search(r"20 runs of ada; report made \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", page.text)


def test_drawings_are_there_without_javascript(page: Page) -> None:
    assert page.count("svg", **{"class": "chart"}) == 4
    assert page.count("svg", **{"aria-label": "eval/loss against step"}) == 1
    assert page.count("svg", **{"aria-label": "Timeline of finetune/3"}) == 1
    assert page.count("svg", **{"aria-label": "Timeline of finetune/19"}) == 0
    assert "pending: nothing tells of its time" in page.text


def test_ends_are_told_on_hover_and_in_text(page: Page) -> None:
    assert page.text.count(str(CRASH["message"])) == 2
    assert "Slurm preempted the job" in page.text
    assert (
        "It began at step 0 and reached step 4,169; its newest checkpoint was of step 4,000: "
        "169 steps lost. hpcrun restarted it in place; attempt 2 began 9 s later." in page.text
    )


def test_the_ledger_of_time(page: Page) -> None:
    assert set(WORDS) == {each.name for each in dataclasses.fields(Goodput)}
    total = next(row for row in page.rows if row[:2] == ["finetune", "GPUs"])
    hours = [in_hours(cell) for cell in total[2:]]
    assert hours[0] == pytest.approx(sum(hours[1:7]), rel=0.01)
    causes = {row[0]: row for row in page.rows if row[1:2] == ["finetune"] and len(row) == 4}
    assert set(causes) == {"hang", "rank_crash", "preempted", "non_finite_loss"}
    assert in_hours(causes["hang"][2]) > in_hours(causes["rank_crash"][2]) > 0
    by_run = next(row for row in page.rows if row[:2] == ["finetune/15", "GPUs"])
    assert in_hours(by_run[4]) == pytest.approx((467 + 169) * 9 * 16 / 3600, rel=0.1)


def test_the_configuration_is_told_once_and_then_what_differs(page: Page) -> None:
    assert page.text.count("zero_optimization:") == 1
    assert ["config.seed", "0", "1"] in page.rows
    assert page.row("config.warmup")[1:] == ["100", "500"]


def test_the_code_is_told(page: Page) -> None:
    row = page.row("finetune 1")
    assert row[1] == "runs 0-19"
    assert "commit3f9c2d1e8a7bof main" in row[3]
    assert page.count("span", title="3f9c2d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d") == 1
    assert "with changes that were not committed" in row[3]
    assert row[4] == "3.11.9, torch 2.13.0, DeepSpeed 0.19.8, hpcrun 0"
    assert row[5] == "hpcrun submit finetune.yaml"


def test_telemetry_is_told_and_drawn(page: Page) -> None:
    row = next(row for row in page.rows if row[:2] == ["finetune/0", "node07"])
    assert re.fullmatch(r"9\d(\.\d)? / 9\d(\.\d)?", row[2])
    drawn = page.data["runs"][0]["telemetry"]["values"]
    assert set(drawn["gpu"]) == {"node07", "node08"}


def test_every_colour_is_in_the_style_sheet() -> None:
    style = (resources.directory("templates") / "report" / "report.css").read_text()
    assert [kind for kind in WORDS if f".k-{kind} " not in style] == []


def test_nothing_of_a_user_becomes_markup(small: Experiment, tmp_path: Path) -> None:
    hostile(small)
    page = report(tmp_path, "study")
    assert page.text.count(EVIL) > 10
    assert page.count("img") == 0
    assert page.html.count("</script") == page.count("script") == 3
    assert page.data["metrics"][0] == EVIL
    assert page.data["runs"][0]["label"] == f"name={EVIL}"


def test_the_page_may_load_nothing(page: Page) -> None:
    [policy] = [
        found["content"]
        for name, found in page.elements
        if name == "meta" and "http-equiv" in found
    ]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src( 'sha256-[\w+/]{43}='){2}",
        str(policy),
    )
    outside = [
        found for _, found in page.elements if {"src", "srcset", "data", "action"} & set(found)
    ]
    assert outside == []
    leading = [found for _, found in page.elements if str(found.get("href")).startswith("https://")]
    assert {found["rel"] for found in leading} == {"noopener noreferrer"}
    assert len(leading) == 20
    links = [
        found["href"] for _, found in page.elements if "href" in found and found not in leading
    ]
    ids = {found.get("id") for _, found in page.elements}
    assert links
    assert [link for link in links if str(link)[:1] != "#" or str(link)[1:] not in ids] == []
    assert "Copyright (c) 2022 Leon Sorokin" in page.html


def test_runs_of_which_little_is_known(small: Experiment, tmp_path: Path) -> None:
    small.submit(range(5))
    small.start(0, 1, workers=False)
    small.start(1, 1)
    small.metrics(1, 1, range(1, 30), loss=lambda step: float("nan") if step > 5 else 1e308)
    small.start(3, 1)
    lines = [{"step": step, "time": float("nan"), "loss": 1.0} for step in range(3)]
    files.append(small.run(3).attempt(1).metrics, *lines)
    small.start(2, 1)
    small.run(2).attempt(1).metrics.write_bytes(b'{"step": 1, "lo\xff\x00\n{"step": 2, "x": 3}\n')
    small.end(2, 1, "failed", kind="unknown", message="\ud800 \x1b[31mred")
    (small.paths.submission(1).submission).unlink()
    page = report(tmp_path, "study")
    assert "5 runs of an unknown user" in page.text
    assert "29 values that are not finite are not drawn." in page.text
    assert "No node of these runs was sampled." in page.text
    assert page.row("study/4")[1] == "unknown"


def test_what_nobody_logged_has_its_history_too(small: Experiment, tmp_path: Path) -> None:
    small.submit((1,))
    small.start(1, 1)
    own = {"gradient_norm": 2.0, "loss_scale": 65536.0, "skipped_steps": 3.0}
    small.metrics(1, 1, range(1, 30), loss=1.0, **own)
    page = report(tmp_path, "study")
    assert set(page.data["metrics"]) >= own.keys()
    for name in own:
        assert f"{name} against step" in page.html


def test_no_run_has_begun(small: Experiment, tmp_path: Path) -> None:
    small.submit((0, 1))
    page = report(tmp_path, "study")
    assert page.count("section", id="curves") == 0
    assert page.data["metrics"] == []


def test_a_further_column_of_its_own(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rendered._OWN_COLUMNS, "samples", lambda run: 70 + run.selected.run.number)
    small.submit((0, 1))
    page = Page(rendered.render(observed.collect(Finder(tmp_path / "root").resolve(["study"]))))
    assert page.row("run")[-3:] == ["attempts", "samples", "step"]
    assert page.row("study/1")[-3:] == ["", "71", ""]
    own = [attributes["title"] for _, attributes in page.elements if "data-own" in attributes]
    assert own == ["attempts", "samples"]


def test_telemetry_that_is_left_out_is_told(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.submit((0, 1))
    attempts = [small.start(run) for run in (0, 1)]
    os.mkfifo(attempts[0].telemetry("n1"))
    samples = [{"time": T0 + place, "cpu": 7.0} for place in range(9)]
    files.append(attempts[1].telemetry("n1"), *samples)
    monkeypatch.setattr(node_usage, "MOST_READ", 5)
    found = observed.collect(Finder(tmp_path / "root").resolve(["study"]))
    text = Page(rendered.render(found)).text
    assert "Of study/1, only the first 500,000 samples of telemetry were read." in text
    assert f"left out: {attempts[0].telemetry('n1')}: a FIFO, not a regular file." in text


def test_thousands_of_attempts(small: Experiment, tmp_path: Path) -> None:
    small.submit((0,))
    lines = []
    for attempt in range(1, 2_001):
        at = T0 + 100 * attempt
        lines += [
            {"event": "attempt_started", "time": at, "attempt": attempt, "submission": 1},
            {"event": "attempt_ended", "time": at + 50, "attempt": attempt}
            | {"outcome": "failed", "cause": {"kind": "hang", "message": f"hung at {attempt}"}},
        ]
    small.run().directory.mkdir(parents=True)
    files.append(small.run().ledger, *lines)
    page = report(tmp_path, "study")
    assert len(page.html) < 300_000
    assert "1,970 attempts between these are left out here." in page.text
    assert "hung at 2000" in page.text


def test_many_runs_begin_with_the_best(small: Experiment, tmp_path: Path) -> None:
    small.submit(range(30))
    for run in range(30):
        small.start(run, 1)
        small.metrics(run, 1, range(1, 6), loss=float((run * 7) % 30))
        small.end(run, 1)
    page = report(tmp_path, "study")
    best = [run for run in range(30) if (run * 7) % 30 < 12]
    assert sorted(page.data["shown"]) == best
    assert sorted(page.data["slots"][run] for run in best) == list(range(12))
    assert "The charts begin with 12 of 30 runs" in page.text
    assert "0 best loss, study/0" in page.text


def test_code_that_changed_between_submissions(small: Experiment, tmp_path: Path) -> None:
    small.submit((0,))
    small.submit((1,), job_id="200")
    page = report(tmp_path, "study")
    [told] = [row[3] for row in page.rows if row[:1] == ["study 2"]]
    assert "abc.tar.gz cannot be read" in told


def test_it_says_how_far_it_is(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.submit((0, 1))
    for run in (0, 1):
        small.start(run, 1)
        small.end(run, 1)
    stream, read = io.StringIO(), metric_curves.read
    slow = [lambda: True, lambda: "reading metrics: 1 of 2 (" in stream.getvalue()]

    def slowly(paths: RunPaths) -> metric_curves.Curve:
        until(slow.pop(0))
        return read(paths)

    monkeypatch.setattr(metric_curves, "read", slowly)
    monkeypatch.setattr(activity, "SILENCE", 0.0)
    monkeypatch.delenv(activity.VARIABLE, raising=False)
    with activity.tell_on(stream):
        observed.collect(Finder(tmp_path / "root").resolve(["study"]))
    assert slow == []


def test_several_experiments_share_a_page(small: Experiment, tmp_path: Path) -> None:
    small.submit((0,))
    Experiment(tmp_path / "root", "other").submit((0,), spec={"config": {"x": 1}})
    page = report(tmp_path, "study", "other")
    assert "<title>study, other - hpcrun report</title>" in page.html
    assert "The resolved spec of other/0" in page.text
    assert ">together</th>" in page.html
    assert ">together</th>" not in report(tmp_path, "study").html


def test_what_the_command_writes(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.submit((0, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(layout.__file__).parents[2]))
    root = tmp_path / "root"
    first = hpcrun("report", root=root)
    assert re.fullmatch(r"study.html: 2 runs, \d+ kB\n", first.stdout)
    again = json.loads(hpcrun("report", "study/1", "--json", root=root).stdout)
    size = (tmp_path / "study-1.html").stat().st_size
    assert again == {"file": str(tmp_path / "study-1.html"), "bytes": size, "runs": 1}
    hpcrun("report", "study", "x>0 or attempts>=0", root=root)
    hpcrun("report", "study/0", "study/1", root=root)
    hpcrun("report", "study/0-1", root=root)
    pages = {"study.html", "study-0-1.html", "study-1.html", "study-some.html"}
    assert {path.name for path in tmp_path.glob("*.html")} == pages
    assert Page(hpcrun("report", "-o", "-", root=root).stdout).count("section") >= 6
    thesis = tmp_path / "thesis.html"
    thesis.write_text("<p>Chapter 1")
    refused = hpcrun("report", "-o", "thesis.html", root=root)
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: thesis.html exists and is no report of hpcrun; it is left as it is\n\n"
        "hint: name another file with -o, or replace this one with --force\n"
    )
    assert thesis.read_text() == "<p>Chapter 1"
    assert hpcrun("report", "-o", "thesis.html", "--force", root=root).returncode == 0
    nowhere = hpcrun("report", "-o", "thesis/figures/study.html", root=root)
    assert nowhere.returncode == 2
    assert "there is no directory thesis/figures\n\nhint: make it first" in nowhere.stderr
    both = hpcrun("report", "-o", "-", "--json", root=root)
    assert (both.returncode, both.stdout) == (2, "")
    assert "leave one of them out" in both.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
