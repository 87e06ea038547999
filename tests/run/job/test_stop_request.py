"""A stop request bounds the end of an attempt; tests/run/test_supervisor runs whole stops."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.stop_request import StopRequest
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import Entry, RunPlan


def stop_request(tmp_path: Path, end_time: float | None) -> StopRequest:
    paths = RunPaths(tmp_path / "study" / "runs" / "3")
    run = RunPlan(3, "x", "", {}, Entry("command", argv=("true",)), {})
    launcher = SimpleNamespace(end_time=lambda: end_time, now=time.time, requeues=True)
    made = cast(Launcher, launcher), cast(AttemptEnd, SimpleNamespace())
    return StopRequest(run, paths, paths.attempt(1), *made)


@pytest.mark.parametrize(
    ("end", "least", "most"),
    [(None, 1e9, float("inf")), (100.0, 90.0, 100.0), (-5.0, 1.0, 1.0)],
    ids=["no time limit", "near its time limit", "beyond it"],
)
def test_what_is_kept_is_kept_before_the_time_limit(
    tmp_path: Path, end: float | None, least: float, most: float
) -> None:
    """A run that crashed shortly before it copied files for five minutes, and was killed."""
    found = stop_request(tmp_path, None if end is None else time.time() + end).seconds_left()
    assert least <= found <= most
