"""What is said of batches with which a training went bad."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.observe.diagnosis import advice, narrative
from hpcrun.policy.next_attempt import left_out_words
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
    assert narrative.bad_batch(attempt) == told


def test_batches_that_are_left_out_are_counted_once() -> None:
    one = _attempt(BAD, [8, 15])
    assert left_out_words([Attempt(1), one, one]) == "1 global batch left out"
    two = [one, _attempt(BAD, [16, 23])]
    assert left_out_words(two) == "2 global batches left out"
    assert left_out_words([Attempt(1)]) == ""


def _advice(kind: str, recovery: Recovery) -> str:
    run = SimpleNamespace(attempts=[SimpleNamespace(attempt=_attempt(BAD))])
    bad, plan = SimpleNamespace(cause={"kind": kind}), SimpleNamespace(recovery=recovery)
    case: Any = SimpleNamespace(run=run, bad=bad, plan=plan, go_on="Go on")
    return advice._without_batch(case)


def test_advice_says_what_to_type() -> None:
    told = _advice("loss_spike", Recovery())
    assert "`hpcrun submit` with recovery.on_spike=skip" in told
    told = _advice("non_finite_loss", Recovery(on_nan="skip"))
    assert told == "recovery.on_nan is skip: none so far, as the samples are not known. Go on."
