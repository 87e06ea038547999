"""A time limit that earlier attempts have shown to be too short is refused at submission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.submit import time_limit


def _run(time: str, stop_before: str | None = None) -> RunPlan:
    spec: dict[str, Any] = {"resources": {"time": time}, "recovery": {"stop_before": stop_before}}
    return RunPlan(3, "identity", "", {}, Entry("command", argv=("true",)), spec)


@pytest.fixture
def saved(tmp_path: Path) -> ExperimentPaths:
    """Run 3 once took 100 s to save."""
    paths = ExperimentPaths(tmp_path)
    attempt = paths.run(3).attempt(1)
    attempt.directory.mkdir(parents=True)
    files.append(attempt.session, {"event": "saved", "step": 5, "seconds": 100.0})
    return paths


def test_too_short(saved: ExperimentPaths) -> None:
    with pytest.raises(UsageError) as caught:
        time_limit.check([_run("00:05:00")], saved)
    assert "of that run 3 needs 220 s to stop: a save took up to 100 s" in caught.value.message
    assert "7 minutes or more" in str(caught.value.hint)


def test_long_enough_or_chosen_or_never_measured(saved: ExperimentPaths, tmp_path: Path) -> None:
    time_limit.check([_run("00:08:00"), _run("00:05:00", "00:01:00")], saved)
    time_limit.check([_run("00:01:00")], ExperimentPaths(tmp_path / "other"))
