"""A pattern of the user's that takes as long as it likes."""

from __future__ import annotations

import threading
import time

import pytest

from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources import log_lines, pattern_search

SLOW = r"(?:\w+\s?)*(?<!x) step (?P<step>\d+)$"
BAD = "a" * 40 + "!"


def test_a_slow_pattern_costs_its_line_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_search, "LIMIT", 0.3)
    pattern = log_lines.LogPattern(SLOW)
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.02):
            beats.append(time.monotonic())

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        found = pattern.poll(Look(2.0, 1.0, ("loss  step 1", BAD, "loss  step 2", BAD, "x")))
    finally:
        over.set()
        heart.join()
    assert [line.step for line in found.lines] == [1, 2]
    assert found.problem is None
    assert len(beats) > 10, "another thread ran meanwhile"
    found = pattern.poll(Look(3.0, 2.0, ("loss  step 3", BAD, "loss  step 4")))
    assert [line.step for line in found.lines] == [3]
    assert found.problem is not None
    assert "3 times not done with a line after 0.3 s" in found.problem
    assert BAD in found.problem
    later = pattern.poll(Look(4.0, 3.0, ("loss  step 5",)))
    assert (later.lines, later.problem) == ([], None)
    pattern.close()


def test_a_search_that_somebody_ends_is_started_again() -> None:
    search = pattern_search.PatternSearch(r"(?P<step>\d+)")
    assert list(search.search(["step 1", "none"])) == [{"step": "1"}, None]
    process = search._process
    assert process is not None
    # As Slurm signals a whole step.
    process.terminate()
    assert list(search.search(["step 2"])) == [{"step": "2"}]
    process.kill()
    with pytest.raises(ChildProcessError):
        list(search.search(["step 3"]))
    assert list(search.search(["step 4"] * 500)) == [{"step": "4"}] * 500
    search.close()
    assert search._process is None
