"""The plans and journals of an experiment, whole or in part."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.state import history, journal, layout, plan_file
from hpcrun.state.layout import ExperimentPaths
from tests.support.plans import command_plan


@pytest.fixture
def experiment(tmp_path: Path) -> ExperimentPaths:
    """Runs 1 and 2, then run 2 again with another identity; a third that was never completed."""
    paths = layout.experiment(tmp_path, "study")
    plan = command_plan(tmp_path, {1: ["true"], 2: ["true"]})
    later = dataclasses.replace(plan.run(2), identity="other")
    for number, runs in ((1, plan.runs), (2, (later,)), (3, None)):
        submission = paths.submission(number)
        submission.directory.mkdir(parents=True)
        if runs is not None:
            plan_file.write(dataclasses.replace(plan, runs=runs), submission.plan)
            asked = [run.number for run in runs]
            journal.write(submission, journal.SUBMITTED, 0, asked, job_id="5")
    journal.write(paths.submission(3), journal.REFUSED, 0, [2], message="no")
    return paths


def test_the_newest_plan_and_word_of_each_run(experiment: ExperimentPaths) -> None:
    found = history.read(experiment)
    assert {run: planned.paths.number for run, (planned, _) in found.runs.items()} == {1: 1, 2: 2}
    assert found.newest is not None
    assert found.newest.paths.number == 2
    # The refusal does not hide the job.
    assert {run: job.submission for run, job in found.submissions.items()} == {1: 1, 2: 2}
    plans = history.plans(experiment)
    assert history.numbers(plans) == {"identity-1": 1, "identity-2": 2, "other": 2}


def test_a_plan_that_cannot_be_read(experiment: ExperimentPaths) -> None:
    experiment.submission(2).plan.write_text("[]")
    said: list[str] = []
    assert history.read(experiment, said.append).runs.keys() == {1, 2}
    assert len(said) == 1
    assert "is not a plan" in said[0]
    experiment.submission(1).plan.write_text("{")
    with pytest.raises(UsageError, match="is not a plan"):
        history.read(experiment)


def test_a_plan_that_is_gone_is_no_submission_that_never_was(experiment: ExperimentPaths) -> None:
    experiment.submission(2).plan.unlink()
    said: list[str] = []
    assert history.read(experiment, said.append).runs.keys() == {1, 2}
    assert "submissions/2/plan.json is gone" in said[0]
    # Another run would get the number of one of its runs.
    with pytest.raises(BrokenFile, match=r"submissions/2/plan\.json is gone"):
        history.plans(experiment)
    experiment.submission(1).plan.unlink()
    with pytest.raises(BrokenFile, match="is gone"):
        history.read(experiment)
