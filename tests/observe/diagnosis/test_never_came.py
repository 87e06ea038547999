"""What a spec names and a run never showed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.diagnosis import unread_progress
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.status import statuses
from hpcrun.slurm.queue import JobState
from hpcrun.state import files
from tests.support.experiment import T0, Experiment


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "root")


def _told(study: Experiment, state: str = "RUNNING") -> list[str]:
    selected = Finder(study.paths.directory.parent).runs(study.paths)
    found = statuses(
        selected, ask=lambda jobs: Answers(jobs={job.job_id: JobState("", state) for job in jobs})
    )
    return [*unread_progress.never_came_notes(zip(selected, found, strict=True))]


def _run(study: Experiment, *, age: float, steps: int = 20, **spec: Any) -> None:
    study.submit(spec=spec)
    paths = study.start()
    paths.launch.write_text("{}")
    began = paths.launch.stat().st_mtime - age
    os.utime(paths.launch, (began, began))
    study.metrics(0, 1, range(1, steps + 1), restored=None, train_loss=0.5)


OBJECTIVE = {"objective": {"metric": "accuracy", "mode": "max"}}
RESUME = {
    "objective": None,
    "recovery": {"resume": {"when": ["out/ckpt.pt"], "args": ["--resume"]}},
}


def test_an_objective_that_is_never_logged(study: Experiment) -> None:
    _run(study, age=700, **OBJECTIVE)
    told = "study/0: the metric of the objective, accuracy, was not logged: it logs train_loss"
    assert _told(study) == [told]
    # It was logged so long ago that `status` does not see it any more.
    metrics = study.run().attempt(1).metrics
    text = metrics.read_text()
    metrics.write_text('{"step": 1, "time": 1.7e9, "accuracy": 0.5}\n' + 500 * text)
    assert _told(study) == []


@pytest.mark.parametrize("spec", [OBJECTIVE, RESUME])
def test_while_it_runs_it_may_still_come(study: Experiment, spec: dict[str, Any]) -> None:
    _run(study, age=60, **spec)
    assert _told(study) == []
    study.end()
    assert len(_told(study)) == 1


def test_files_to_resume_from_that_never_appear(study: Experiment) -> None:
    _run(study, age=700, **RESUME)
    (told,) = _told(study)
    assert told.startswith(
        "study/0: no finished save was seen that has matched so far recovery.resume.when "
        "(out/ckpt.pt)"
    )
    study.end(outcome="failed", kind="rank_crash", message="it crashed")
    assert len(_told(study, "FAILED")) == 1
    saved = {"event": "saved", "time": T0, "step": 5, "checkpoint": "out/ckpt.pt"}
    files.append(study.run().attempt(1).session, saved)
    assert _told(study, "FAILED") == []


def test_a_run_that_was_ended_early_had_no_time_to_save(study: Experiment) -> None:
    _run(study, age=30, **RESUME)
    study.end(outcome="failed", kind="cancelled", message="cancelled by the user")
    assert _told(study, "CANCELLED") == []


def test_what_is_not_watched_or_made_no_step_is_not_judged(study: Experiment) -> None:
    _run(study, age=700, **RESUME, progress={"saved": "elsewhere/*"})
    assert _told(study) == []


def test_a_run_without_a_step_has_nothing_to_save(study: Experiment) -> None:
    _run(study, age=700, steps=0, **RESUME)
    assert _told(study) == []


def test_a_run_that_came_to_nothing_is_not_reproached_for_its_objective(study: Experiment) -> None:
    study.submit(spec=OBJECTIVE)
    study.start()
    study.end(outcome="failed", kind="rank_crash", message="it crashed")
    assert _told(study, "FAILED") == []
    study.end()
    assert "it logs no metric" in _told(study, "COMPLETED")[0]


def test_a_completed_run_whose_steps_are_not_read(study: Experiment) -> None:
    _run(study, age=60, steps=0, **RESUME)
    study.end()
    (told,) = _told(study, "COMPLETED")
    assert "no finished save was seen that matched recovery.resume.when (out/ckpt.pt)" in told
