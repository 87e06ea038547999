"""Experiments beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.tools.report import comparison
from hpcrun.tools.report.report import collect
from tests.support.experiment import Experiment, path_with, slurm_shim


def _rows(root: Path, *names: str) -> dict[str, tuple[str, ...]]:
    found = collect(Finder(root).resolve(names))
    return {row.name: row.cells for row in comparison.rows(found)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments of three runs that differ in a key; and one that was never started."""
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    root = tmp_path / "root"
    for name, depth in (("one", 2), ("two", 3)):
        study = Experiment(root, name)
        study.submit(
            range(3),
            swept={run: {"config.lr": run / 10} for run in range(3)},
            spec={
                "name": name,
                "config": {"depth": depth, "lr": 0},
                "deepspeed": {"batch": 8} if name == "two" else {},
            },
        )
        for run in range(3):
            study.start(run)
            study.metrics(run, 1, range(1, 4), loss=lambda step, run=run, depth=depth: run + depth)
            if run:
                study.end(run)
            else:
                study.end(run, 1, "failed", kind="rank_crash", message="killed")
    Experiment(root, "three").submit()
    return root


def test_facts_and_differing_keys(root: Path) -> None:
    rows = _rows(root, "one", "two")
    assert rows["runs"] == ("2 completed, 1 failed",) * 2
    assert rows["best loss"] == ("2", "3")
    assert rows["median of the best loss"] == ("3", "4")
    assert rows["the best run"] == ("one/0 lr=0.0", "two/0 lr=0.0")
    assert rows["what went wrong"] == ("1 rank_crash",) * 2
    assert rows["config.depth"] == ("2", "3")
    assert rows["deepspeed.batch"] == ("(not there)", "8")
    assert {"name", "config.lr", "deepspeed"} & {*rows} == set()


@pytest.mark.parametrize(("names", "columns"), [(["one"], 0), (["one", "two", "three"], 3)])
def test_of_one_there_is_nothing_to_compare(root: Path, names: list[str], columns: int) -> None:
    rows = _rows(root, *names)
    assert {len(cells) for cells in rows.values()} == ({columns} if columns else set())
    if columns:
        assert rows["best loss"] == ("2", "3", "")
        assert rows["config.depth"] == ("2", "3", "(not there)")
