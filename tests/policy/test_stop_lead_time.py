"""How long before its time limit a run is asked to stop."""

from __future__ import annotations

from pathlib import Path

from hpcrun.policy import stop_lead_time
from hpcrun.state import files
from hpcrun.state.layout import RunPaths


def test_what_was_asked_for_wins() -> None:
    assert stop_lead_time.seconds(3600, asked=300, save=1000) == 300


def test_before_a_save_was_measured() -> None:
    assert stop_lead_time.seconds(86400) == 60
    assert stop_lead_time.seconds(120) == 30
    assert stop_lead_time.seconds(86400, step=30) == 150


def test_it_follows_the_measured_save_and_step() -> None:
    assert stop_lead_time.seconds(86400, save=0.1) == 30
    assert stop_lead_time.seconds(86400, save=100, step=10) == 250


def test_what_earlier_attempts_have_shown(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "3")
    assert stop_lead_time.measure(run) == (None, 0.0)
    for number, seconds in ((1, 9.0), (2, 4.0)):
        attempt = run.attempt(number)
        attempt.directory.mkdir(parents=True)
        files.append(attempt.session, {"event": "saved", "step": 5, "seconds": seconds})
        files.append(attempt.metrics, {"step": 5, "step_seconds": 0.5 * number})
    assert stop_lead_time.measure(run) == (9.0, 1.0)


def test_a_limit_that_leaves_too_little() -> None:
    assert stop_lead_time.leaves_enough(600, 300)
    assert not stop_lead_time.leaves_enough(600, 301)
