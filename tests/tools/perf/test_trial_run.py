"""The run of trials: what an interrupt leaves behind. The rest is shown by cli/test_tune.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import ClusterUnreachable
from hpcrun.state import journal
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission import run_actions
from hpcrun.submission.run_actions import CANCELLING, RESUMED, Decision
from hpcrun.tools.perf import trial_run


def _job(run: int, job_id: str) -> Job:
    return Job(run, ExperimentPaths(Path("/root/x")).submission(1), "submitted", {}, job_id)


def _left(monkeypatch: pytest.MonkeyPatch, settled: Any) -> tuple[str, ...]:
    def settle(*_: Any) -> Any:
        if isinstance(settled, BaseException):
            raise settled
        return settled

    known = {run: _job(run, f"7_{run}") for run in (0, 1)}
    monkeypatch.setattr(run_actions, "settle", settle)
    monkeypatch.setattr(journal, "newest_jobs", lambda _: known)
    return trial_run._not_over(ExperimentPaths(Path("/root/x")), (0, 1), print)


def test_jobs_that_have_not_ended_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = [Decision(0, RESUMED, _job(0, "7_0")), Decision(1, CANCELLING, _job(1, "7_1"))]
    assert _left(monkeypatch, decisions) == ("7_1",)
    assert _left(monkeypatch, decisions[:1]) == ()


@pytest.mark.parametrize("error", [ClusterUnreachable("no answer"), KeyboardInterrupt()])
def test_so_are_all_whose_end_is_not_known(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    assert _left(monkeypatch, error) == ("7_0", "7_1")


def test_words() -> None:
    assert trial_run.after_interrupt(()) == "interrupted; nothing is left running"
    told = trial_run.after_interrupt(("7_0", "7_1"))
    assert told.endswith("7_0,7_1 are cancelled, and not known to be over: squeue -j 7_0,7_1")
