"""How far a search is, in words."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import run_state, status_table
from hpcrun.observe.status.status import statuses
from hpcrun.observe.status.status_table import Screen, search_line
from hpcrun.state.plan import SEARCH
from tests.support.experiment import Experiment


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["completed"], "1 trial: 1 completed"),
        (
            ["completed", "pruned", "running", "restarting", "requeued", "failed", "cancelled"],
            "7 trials: 1 completed, 1 pruned, 3 running, 1 failed, 1 cancelled",
        ),
        (["planned", "waiting", "pending", "unknown"], "4 trials: 4 left"),
    ],
)
def test_the_sentence(states: list[str], expected: str) -> None:
    assert status_table.trials_text(states) == expected


def test_each_state_counts_once() -> None:
    assert sum(status_table.trial_counts(run_state.STATES).values()) == len(run_state.STATES)


def test_the_line_of_a_search_alone(tmp_path: Path) -> None:
    """On the screen that is drawn anew, too; two searches have none together."""
    spec = {SEARCH: {}, "objective": {"metric": "loss", "mode": "max"}}
    for name in ("one", "two"):
        found = Experiment(tmp_path, name)
        found.submit((0, 1), spec=spec, job_id=None)
        found.start(1)
        found.metrics(1, 1, [1], loss=0.5)
        found.end(1)
    Experiment(tmp_path, "grid").submit((0,), spec={"objective": spec["objective"]}, job_id=None)
    runs = {where: Finder(tmp_path).resolve([where]) for where in ("one", "*", "grid")}
    each = {where: [*zip(those, statuses(those), strict=True)] for where, those in runs.items()}
    expected = "search of 2 trials: 1 completed, 1 left; best last value: loss 0.5, run 1, "
    assert search_line(each["one"]) == expected
    assert search_line(each["one"][:1]) == "search of 1 trial: 1 left"
    assert (search_line(each["*"]), search_line(each["grid"])) == (None, None)
    console = Console(width=200, height=20, file=io.StringIO())
    console.print(Screen(console).render(*zip(*each["one"], strict=True)))
    assert expected.strip() in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("prune", "has_total", "told"),
    [("median", False, True), ("median", True, False), ("none", False, False)],
)
def test_pruning_without_a_total_is_told(
    tmp_path: Path, prune: str, has_total: bool, told: bool
) -> None:
    found = Experiment(tmp_path, "one")
    found.submit((0, 1), spec={SEARCH: {"prune": prune}})
    found.start(1)
    found.metrics(1, 1, [1, 2], restored=0 if has_total else None, loss=0.5)
    runs = Finder(tmp_path).resolve(["one"])
    line = search_line([*zip(runs, statuses(runs), strict=True)]) or ""
    assert ("median ends no run of which nothing says the total" in line) == told
