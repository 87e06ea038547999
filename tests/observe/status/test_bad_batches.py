"""What is said of batches with which a training went bad."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.observe.status import bad_batches
from hpcrun.state.ledger import Attempt
from hpcrun.state.spec.experiment import Recovery

BAD = {"step": 1005, "cause": "non_finite_loss", "message": "", "batch": 1006, "samples": [8, 15]}


def _attempt(bad: dict[str, Any] | None, left_out: list[int] | None = None) -> Attempt:
    decided = {"action": "restart"} | ({"left_out": left_out} if left_out else {})
    ended = {"outcome": "failed"} | ({"bad_step": bad} if bad else {})
    return Attempt(1, ended=ended, decided=decided)


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        (Attempt(1), ""),
        (_attempt(None), ""),
        (_attempt({"step": 3, "cause": "loss_spike", "message": ""}), ""),
        (_attempt(BAD), "Step 1,005 trained on global batch 1,006, samples 8 to 15."),
        (
            _attempt({**BAD, "epoch": 2}, [8, 15]),
            "Left out from then on: global batch 1,006, samples 8 to 15 of epoch 3, on which step "
            "1,005 trained.",
        ),
    ],
)
def test_an_attempt_tells_its_batch(attempt: Attempt, told: str) -> None:
    assert bad_batches.of_attempt(attempt) == told


def test_batches_that_are_left_out_are_counted_once() -> None:
    one = _attempt(BAD, [8, 15])
    assert bad_batches.left_out([Attempt(1), one, one]) == "1 global batch left out"
    two = [one, _attempt(BAD, [16, 23])]
    assert bad_batches.left_out(two) == "2 global batches left out"
    assert bad_batches.left_out([Attempt(1)]) == ""


def test_advice_says_what_to_type() -> None:
    told = bad_batches.advice("loss_spike", Recovery(), [_attempt(BAD)], "Go on")
    assert "`hpcrun submit` with recovery.on_spike=skip" in told
    told = bad_batches.advice("non_finite_loss", Recovery(on_nan="skip"), [_attempt(BAD)], "Go on")
    assert told == "recovery.on_nan is skip: none so far, as the samples are not known. Go on."
