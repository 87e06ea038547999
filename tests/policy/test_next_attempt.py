"""What the next attempt has otherwise, as tables over ledgers, and what is decided with it."""

from __future__ import annotations

import pytest

from hpcrun.policy import causes, next_attempt, recovery
from hpcrun.policy.batch import Triple
from hpcrun.state.job_changes import JobChange
from hpcrun.state.ledger import Attempt
from hpcrun.state.spec.experiment import Recovery
from tests.policy.test_recovery import CRASH, REQUEUE, RESTART, STOP, ledger

OOM, HALVE = causes.OUT_OF_MEMORY, Recovery(shrink_micro_batch=3)
# Ends since the last submission, what of the batch is planned, and what follows: the micro batch of
# the next attempt, or that it stops.
HALVINGS: dict[str, tuple[list[Attempt], Recovery, Triple | None, int | None]] = {
    "off by default": (ledger(OOM), Recovery(), Triple(64, 8, 4), 8),
    "one end": (ledger(OOM), HALVE, Triple(64, 8, 4), 4),
    "three ends": (ledger(OOM, OOM, OOM), HALVE, Triple(64, 8, 4), 1),
    "an odd size": (ledger(OOM), HALVE, Triple(36, 9, 2), 3),
    "crashes do not halve": (ledger(CRASH, OOM, CRASH), HALVE, Triple(64, 8, 4), 4),
    "no more than allowed": (ledger(OOM, OOM), Recovery(shrink_micro_batch=1), Triple(64, 8, 4), 4),
    "at 1 the budget counts again": (ledger(OOM, OOM, OOM), HALVE, Triple(8, 2, 2), 1),
    "and stops it": (ledger(OOM, OOM, OOM, OOM), HALVE, Triple(8, 2, 2), None),
    "a micro batch of 1 from the start": (ledger(OOM, OOM, OOM), HALVE, Triple(8, 1, 4), None),
    "an open batch": (ledger(OOM, OOM, OOM), HALVE, None, None),
    "a user's budget is for what halving does not answer": (
        ledger(OOM, OOM),
        Recovery(shrink_micro_batch=2, budgets={OOM: 1}),
        Triple(64, 8, 4),
        2,
    ),
    "two failures before": (ledger(CRASH, CRASH, OOM), HALVE, Triple(64, 8, 4), 4),
}


@pytest.mark.parametrize("name", HALVINGS)
def test_micro_batches_after_out_of_memory(name: str) -> None:
    attempts, policy, planned, expected = HALVINGS[name]
    action = recovery.decide(attempts, policy, planned=planned)
    assert (action.kind == STOP) == (expected is None)
    times = next_attempt.halvings(attempts, policy, planned)
    if planned is not None and expected is not None:
        assert planned.halved(times).micro == expected
        told = f"with micro batches of {expected}" in action.reason
        assert told == (attempts[-1].number in _halved(attempts, times))


def _halved(attempts: list[Attempt], times: int) -> list[int]:
    return [one.number for one in attempts if one.kind == OOM][:times]


def test_ends_before_the_last_submission_halve_nothing() -> None:
    attempts = [*ledger(OOM, OOM), *ledger(OOM, submission=2)]
    attempts[-1].number = 3
    action = recovery.decide(attempts, HALVE, planned=Triple(64, 8, 4))
    assert action.reason.endswith("with micro batches of 4")


def test_a_smaller_batch_is_told() -> None:
    started = {"micro_batch": 2, "accumulation": 8, "planned_micro_batch": 4}
    said = next_attempt.smaller_batch(Attempt(2, started))
    assert said == "micro batches of 2 (8 accumulated) in place of 4: memory ran out"
    assert next_attempt.smaller_batch(Attempt(1)) is None


MORE = {"key": "mem", "field": "MinMemoryNode", "was": "500M", "now": "750M"}
NO_MORE = {"key": "mem", "problem": "recovery.grow.most.mem is 500M"}


def grown(*ends: str, grow: dict[str, str]) -> list[Attempt]:
    """Attempts that ended so, all but the last answered by more of what was too little."""
    attempts = ledger(*ends)
    for attempt in attempts[:-1]:
        attempt.decided = {"action": REQUEUE, "grow": grow}
    return attempts


def test_more_memory_is_for_another_allocation() -> None:
    """A restart in place would have what was too little."""
    action = recovery.decide(ledger(OOM), Recovery(), here=True, growth=MORE)
    assert (action.kind, action.grow) == (REQUEUE, MORE)
    assert action.reason == "it starts again, with mem 750M in place of 500M"
    same = recovery.decide(ledger(OOM), Recovery(), here=True, growth=NO_MORE)
    assert (same.kind, same.grow) == (recovery.RESTART, NO_MORE)
    assert "with no more than before: recovery.grow.most.mem is 500M" in same.reason


@pytest.mark.parametrize("kind", [OOM, causes.TIME_LIMIT])
def test_what_more_answers_counts_for_no_budget(kind: str) -> None:
    ends = [kind] * 6
    assert recovery.decide(grown(*ends, grow=MORE), Recovery(), growth=MORE).kind == REQUEUE
    assert recovery.decide(ledger(*ends), Recovery(), growth=MORE).kind == STOP
    # Once there is no more, the ordinary budgets begin.
    assert recovery.decide(grown(*ends, grow=MORE), Recovery(), growth=NO_MORE).kind == REQUEUE
    assert recovery.decide(grown(*ends, grow=NO_MORE), Recovery(), growth=NO_MORE).kind == STOP


def test_what_a_person_changed_later_counts_for_more_than_growth() -> None:
    time = {"key": "time", "field": "TimeLimit", "was": "0-01:00", "now": "0-02:00"}
    attempts = [*grown(OOM, OOM, grow=MORE)[:1], *grown(OOM, OOM, grow=time)[:1]]
    for at, one in enumerate(attempts):
        one.end["time"] = 100.0 * at
    for moment, expected in ((50.0, [MORE, time]), (150.0, [MORE])):
        changes = {"time": JobChange("90", moment)}
        assert next_attempt.growths(attempts, attempts[0].submission or 0, changes) == expected


def test_memory_that_grew_halves_no_micro_batch() -> None:
    planned = Triple(64, 8, 4)
    attempts = grown(OOM, OOM, grow=MORE)
    assert next_attempt.halvings(attempts, HALVE, planned) == 1
    assert "micro" not in recovery.decide(attempts, HALVE, planned=planned, growth=MORE).reason


def bad(*ends: tuple[int, int], cause: str = causes.NON_FINITE) -> list[Attempt]:
    """Attempts that went bad: the step that was kept by then, and the batch of four samples."""
    attempts = ledger(*((cause, kept) for kept, _ in ends))
    for one, (_, batch) in zip(attempts, ends, strict=True):
        samples = [4 * batch - 4, 4 * batch - 1]
        told = {"step": batch, "cause": cause, "message": "", "batch": batch, "samples": samples}
        one.end["bad_step"] = told
    return attempts


SKIPS = Recovery(on_nan="skip", on_spike="skip")
BAD: dict[str, tuple[list[Attempt], Recovery, str, str, tuple[int, int] | None]] = {
    "as ever": (bad((4, 5)), Recovery(), RESTART, "its newest checkpoint", None),
    "twice, as ever": (bad((4, 5), (4, 5)), Recovery(), STOP, "non_finite_loss is 2", None),
    "stop": (bad((4, 5)), Recovery(on_nan="stop"), STOP, "recovery.on_nan is stop", None),
    "stop at a spike alone": (bad((4, 5)), Recovery(on_spike="stop"), RESTART, "newest", None),
    "a spike, stop": (
        *(bad((4, 5), cause="loss_spike"), Recovery(on_spike="stop"), STOP),
        *("recovery.on_spike is stop", None),
    ),
    "skip": (bad((4, 5)), SKIPS, RESTART, "without the batch of step 5", (16, 19)),
    "a spike, skip": (
        *(bad((4, 5), cause="loss_spike"), SKIPS, RESTART, "without the batch of step 5"),
        (16, 19),
    ),
    "three that get further": (
        *(bad((4, 5), (8, 9), (12, 13)), SKIPS, RESTART, "without the batch of step 13"),
        (48, 51),
    ),
    "three that do not": (
        *(bad((4, 5), (4, 6), (4, 7), (4, 8)), SKIPS, STOP, "max_failures is 3", (28, 31)),
    ),
    "ten": (
        bad(*((step, step + 1) for step in range(10, 110, 10))),
        *(SKIPS, STOP, "10 times; recovery.budgets.non_finite_loss is 10", (400, 403)),
    ),
    "a budget of the user's": (
        *(bad((4, 5)), Recovery(on_nan="skip", budgets={"non_finite_loss": 1}), STOP),
        *("budgets.non_finite_loss is 1", (16, 19)),
    ),
    "samples that are not known": (
        *(ledger((causes.NON_FINITE, 4)), SKIPS, RESTART, "its newest checkpoint", None),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_follows_a_batch_with_which_it_went_bad(name: str) -> None:
    attempts, policy, expected, reason, left_out = BAD[name]
    action = recovery.decide(attempts, policy, here=True)
    assert action.kind == expected
    assert reason in action.reason
    assert action.left_out == left_out


def test_what_is_left_out_stays_so_whatever_the_spec_says_later() -> None:
    attempts = bad((4, 9), (4, 5), (4, 5))
    assert next_attempt.left_out(attempts) == []
    for one in attempts:
        one.decided = {"action": "restart", "left_out": one.end["bad_step"]["samples"]}
    assert next_attempt.left_out([*attempts, Attempt(4)]) == [(16, 19), (32, 35)]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"key": "mem"},
        {"now": "2G"},
        {**MORE, "was": None},
        {**MORE, "field": ""},
        {**MORE, "key": "account"},
        {"problem": None},
    ],
)
def test_a_record_of_growth_that_is_not_whole_is_none(record: dict[str, str]) -> None:
    """A ledger may be torn, or another user's."""
    attempt = Attempt(1, decided={"action": REQUEUE, "grow": record})
    assert next_attempt.growth(attempt) == {}
    if "account" not in record.values():
        assert next_attempt.growth_words(record) == ""
