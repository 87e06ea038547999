"""The page of all experiments."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.tools.report import all_experiments
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.tools.report.page import Page
from tests.tools.report.study import EVIL, department, finetune, hostile


def _page(directory: Path, *where: str) -> Page:
    done = hpcrun("report", *where, "-o", "-", root=directory / "root", cwd=directory)
    assert done.returncode == 0, done.stderr
    return Page(done.stdout)


@pytest.fixture(autouse=True)
def _no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))


def test_sums_agree(tmp_path: Path) -> None:
    root = department(tmp_path, 30)
    found = all_experiments.collect(Finder(root).resolve(["*"]))
    assert (found.runs, len(found.experiments), len(found.facts)) == (60, 30, 30)
    [total] = found.in_all
    assert total.paid > 1_000
    assert total.money == pytest.approx(2.5 * total.paid)
    for parts in (found.months, found.experiments, found.users):
        assert sum(one.paid for one in parts) == pytest.approx(total.paid)
        assert sum(one.money or 0 for one in parts) == pytest.approx(total.money)
    assert [one.experiment for one in found.months] == sorted(
        one.experiment for one in found.months
    )
    assert found.states == {"completed": 55, "failed": 5}
    assert {cause.kind: cause.runs for cause in found.causes} == {"rank_crash": 3, "hang": 2}
    lost = sum(total.causes.values())
    assert lost > 0
    assert sum(float(cause.share.rstrip("%")) for cause in found.causes) == pytest.approx(
        100 * lost / total.paid, abs=0.11
    )


def test_the_page(tmp_path: Path) -> None:
    department(tmp_path, 3)
    page = _page(tmp_path, "*")
    assert "3 experiments" in page.text
    assert page.row("study-0000")[3:6] == ["1 failed, 1 completed", "2", "GPU-hours"]
    assert page.row("rank_crash")[1] == "1"
    assert page.count("section") == 4


@pytest.mark.parametrize(
    ("experiments", "where", "wanted"),
    [(2, ("*",), True), (2, ("study-*",), False), (21, ("study-*",), True)],
)
def test_when_it_is_made(
    tmp_path: Path, experiments: int, where: tuple[str, ...], wanted: bool
) -> None:
    department(tmp_path, experiments, runs=1)
    assert ("Causes of failure" in _page(tmp_path, *where).text) is wanted


def test_a_condition_narrows_it(tmp_path: Path) -> None:
    department(tmp_path, 8)
    assert "2 experiments" in _page(tmp_path, "*", "state=failed").text


def test_it_is_not_served(tmp_path: Path) -> None:
    root = department(tmp_path, 2)
    done = hpcrun("report", "*", "--serve", root=root)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the page of all experiments follows nothing\n\nhint: ")


def test_without_prices_there_is_no_money(tmp_path: Path) -> None:
    finetune(tmp_path, runs=4, points=50, telemetry=False)
    page = _page(tmp_path, "*")
    assert page.row("month")[:4] == ["month", "runs", "of", "paid"]
    assert "money" not in page.row("month")


def test_names_are_no_markup(tmp_path: Path) -> None:
    hostile(Experiment(tmp_path / "root"))
    page = _page(tmp_path, "*")
    assert page.count("img") == 0
    assert EVIL in page.text


def test_a_thousand_experiments_in_five_seconds(tmp_path: Path) -> None:
    root = department(tmp_path, 1_000, runs=1)
    began = time.monotonic()
    done = hpcrun("report", "*", "-o", str(tmp_path / "all.html"), root=root)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    print(f"{seconds:.1f} s, {(tmp_path / 'all.html').stat().st_size:,} bytes")
    assert seconds < 5
