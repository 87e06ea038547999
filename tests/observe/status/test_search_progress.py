"""How far a search is, in words."""

from __future__ import annotations

import pytest

from hpcrun.observe.status import run_state, search_progress


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["completed"], "1 trial: 1 completed"),
        (
            ["completed", "pruned", "running", "restarting", "requeued", "failed", "cancelled"],
            "7 trials: 1 completed, 1 pruned, 3 running, 1 failed, 1 cancelled",
        ),
        (["planned", "waiting", "pending", "unknown"], "4 trials: 4 left"),
    ],
)
def test_the_sentence(states: list[str], expected: str) -> None:
    assert search_progress.sentence(states) == expected


def test_each_state_counts_once() -> None:
    assert sum(search_progress.counts(run_state.STATES).values()) == len(run_state.STATES)
