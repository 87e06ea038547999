"""A starved loader is told by `hpcrun why`, from the metrics of its attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.diagnosis import narrative
from hpcrun.observe.diagnosis.attempts import stories
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files, session_log
from hpcrun.state.layout import AttemptPaths
from tests.support.experiment import Experiment


def _attempt(directory: Path, lines: list[dict[str, Any]]) -> AttemptPaths:
    directory.mkdir(exist_ok=True)
    attempt = AttemptPaths(directory)
    files.append(attempt.metrics, *lines)
    return attempt


def _steps(data: float, count: int = 10) -> list[dict[str, Any]]:
    one = {"time": 1.0, "step_seconds": 2.0, "data_seconds": data}
    return [{"step": step, **one} for step in range(1, count + 1)]


def test_the_share(tmp_path: Path) -> None:
    assert narrative.waited_share(_attempt(tmp_path / "a", _steps(0.5))) == pytest.approx(0.25)
    assert "waited for data for 25% of its newest steps" in narrative.data_wait(
        AttemptPaths(tmp_path / "a")
    )
    assert narrative.data_wait(_attempt(tmp_path / "b", _steps(0.1))) == ""
    # Too few steps, none with a loader, lines of anybody's, no file.
    assert narrative.waited_share(_attempt(tmp_path / "c", _steps(0.5, count=3))) is None
    without = [{"step": step, "step_seconds": 1.0} for step in range(9)]
    assert narrative.waited_share(_attempt(tmp_path / "d", without)) is None
    wrong = [{**line, "data_seconds": -5.0} for line in _steps(0.5)]
    assert narrative.waited_share(_attempt(tmp_path / "e", wrong)) is None
    assert narrative.waited_share(AttemptPaths(tmp_path / "none")) is None


def test_why_tells_it_of_the_newest_attempt(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path, "study")
    experiment.submit(range(1))
    experiment.start(0)
    experiment.metrics(0, 1, range(1, 9), step_seconds=1.0, data_seconds=0.31)
    experiment.end(0)
    [story] = stories(Finder(tmp_path).runs(experiment.paths))
    said = "\n".join(narrative.attempt(story.attempts[-1], story, 0.0))
    assert "Rank 0 waited for data for 31% of its newest steps: more num_workers" in said


def _compared(directory: Path, ranks: list[list[Any]], median: Any = 0.02) -> AttemptPaths:
    attempt = _attempt(directory, _steps(0.1))
    details = {"step": 32, "steps": 16, "world_size": 4, "ranks": ranks, "median": median}
    files.append(attempt.session, session_log.record(session_log.DATA_WAITS, **details))
    return attempt


def test_ranks_that_wait_longer_than_the_others_are_named(tmp_path: Path) -> None:
    said = narrative.data_wait(
        _compared(tmp_path / "a", [[3, 0.41], [1, 0.1], [0, 0.02], [2, 0.01]])
    )
    assert "in the 16 steps to step 32: rank 3 41%, rank 1 10%; half of the 4 ranks 2% or" in said
    # All alike, so that rank 0 stands for them; none long; records of anybody's.
    for number, ranks in enumerate(([[3, 0.06]], [[3, "0.9"]], [3], [[3, 9.0]], [[-1, 0.5]])):
        assert narrative.data_wait(_compared(tmp_path / f"b{number}", ranks)) == ""
    assert narrative.data_wait(_compared(tmp_path / "c", [[3, 0.4]], median=None)) == ""
    alike = _compared(tmp_path / "d", [[2, 0.3], [0, 0.28]], median=0.28)
    assert narrative.data_wait(alike) == ""
    files.append(alike.metrics, *_steps(0.6, count=40))
    assert narrative.data_wait(alike).startswith("Rank 0, like the other 3 ranks, waited for data")
