"""Parts of one attempt, as its supervisor runs it; tests/run/test_supervisor runs whole ones."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpcrun.run.job import attempt
from hpcrun.run.job.attempt import RunningAttempt
from hpcrun.run.job.stop_request import EndNow
from hpcrun.run.protocol.launch import Launch
from tests.support.place import launch_of


class Turn:
    """A part of the loop that ends the attempt, or lets the search go on, when it is told."""

    def __init__(self, released: threading.Event, *, ends: bool) -> None:
        self._released, self._ends, self.count = released, ends, 0

    def turn(self) -> None:
        self.count += 1
        if self._ends:
            raise EndNow("the time is over")
        if self.count == 3:
            self._released.set()


@pytest.mark.parametrize("ends", [True, False])
def test_a_long_search_for_what_to_resume_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ends: bool,
) -> None:
    """It held up the end of a supervisor that was asked to leave, without a word."""
    released = threading.Event()

    def decided(launch: Launch) -> Launch:
        released.wait()
        return launch

    monkeypatch.setattr(attempt, "decided", decided)
    monkeypatch.setattr(attempt, "SEARCH_IS_LONG", 0.0)
    running = RunningAttempt.__new__(RunningAttempt)
    running._always = (Turn(released, ends=ends),)
    launch = launch_of(tmp_path, attempt=2)
    try:
        if ends:
            with pytest.raises(EndNow):
                running._resumed(launch)
            waited_for = [one for one in threading.enumerate() if not one.daemon]
            assert waited_for == [threading.main_thread()]
        else:
            assert running._resumed(launch) is launch
            assert capfd.readouterr().out.count("looks for what attempt 2 resumes from") == 1
    finally:
        released.set()
