"""The hours that a search has used, and what follows once its budget is spent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.feature import NotWanted
from hpcrun.features.point_search import FEATURE, budget
from hpcrun.policy import causes
from hpcrun.policy.causes import Evidence
from hpcrun.state import chosen_point, ledger, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH
from tests.support.experiment import HOUR, TRAIN, Experiment


def _search(root: Path, most: float | None, **resources: Any) -> Experiment:
    found = Experiment(root)
    _submit(found, most, **resources)
    return found


def _submit(search: Experiment, most: float | None, **resources: Any) -> None:
    wanted = {"gpus_per_node": 4, "time": "10:00:00", **resources}
    asked = {"space": {"config.x": {"uniform": [0, 1]}}, "budget": most}
    search.submit(range(4), spec={SEARCH: asked, "resources": wanted})


def _ran(search: Experiment, number: int, began: float, ended: float | None) -> None:
    """An attempt of a run, so many hours ago."""
    search.start(number, when=time.time() - began * HOUR)
    if ended is not None:
        when = time.time() - ended * HOUR
        ledger.write(search.run(number), ledger.ENDED, 1, outcome="completed", time=when)


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        ([], 0.0),
        ([(0, 3, 1)], 8.0),
        ([(0, 3, 1), (1, 2, None)], 16.0),
        # Whatever became of it, its job is over by now.
        ([(0, 100, None)], 40.0),
    ],
)
def test_hours_of_runs(
    tmp_path: Path, ran: list[tuple[int, float, float | None]], expected: float
) -> None:
    search = _search(tmp_path, None)
    for one in ran:
        _ran(search, *one)
    plan = plan_file.read(search.paths.submission(1).plan)
    assert budget.hours(plan.runs, search.paths) == pytest.approx(expected, abs=0.01)


def test_without_gpus_they_are_hours_of_processors(tmp_path: Path) -> None:
    search = _search(tmp_path, 1, gpus_per_node=0, cpus_per_task=3)
    _ran(search, 0, 2, 1)
    submission = search.paths.submission(1)
    plan = plan_file.read(submission.plan)
    per_hour = plan.runs[0].all_cpus
    assert per_hour >= 3
    assert budget.hours(plan.runs, search.paths) == pytest.approx(per_hour, abs=0.01)
    found = budget.spent(plan.runs[1], submission)
    assert found == (
        f"the search's budget of 1 CPU-hours is spent ({per_hour} used); a submit with a greater "
        "sweep.search.budget goes on"
    )


def test_a_run_that_has_values_goes_on_and_no_other_begins(tmp_path: Path) -> None:
    search = _search(tmp_path, 8)
    submission = search.paths.submission(1)
    runs = plan_file.read(submission.plan).runs
    chosen_point.write(search.run(0), ChosenPoint("", {"config.x": 0.5}, {}, TRAIN))
    _ran(search, 0, 4, 1)
    assert FEATURE.complete(runs[0], submission) is False
    with pytest.raises(NotWanted, match=r"budget of 8 GPU-hours is spent \(12 used\)"):
        FEATURE.complete(runs[1], submission)
    # By the newest submission, for those of earlier ones too.
    _submit(search, 12.5)
    assert budget.spent(runs[1], submission) is None
    _submit(search, None)
    assert budget.spent(runs[1], submission) is None
    _submit(search, 11)
    assert "budget of 11 GPU-hours is spent" in (budget.spent(runs[1], submission) or "")


def test_what_is_not_wanted_is_no_failure() -> None:
    end = causes.decide(Evidence(not_wanted="the budget is spent"))
    assert (end.outcome, end.exit_code, end.message) == ("cancelled", 0, "the budget is spent")
