"""The search: which trial comes next, and when one ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hpcrun.tools.perf.on_nodes import trial_log, trial_search
from hpcrun.tools.perf.on_nodes.trial_log import (
    FAILED,
    FINAL,
    MEASURED,
    SCREEN,
    SLOWER,
    TrialCandidate,
    TrialPlan,
    TrialRecord,
)
from hpcrun.tools.perf.on_nodes.trial_search import Trial


def _plan(micros: Sequence[int], **others: Any) -> TrialPlan:
    return TrialPlan(tuple(TrialCandidate({}, {}, None, "same", one) for one in micros), **others)


def _record(
    candidate: int, *steps: float, outcome: str = MEASURED, round: str = SCREEN, **more: Any
) -> TrialRecord:
    return TrialRecord(candidate, round, outcome, 0.0, steps, **more)


def _search(plan: TrialPlan, pace: Sequence[float | str]) -> list[TrialRecord]:
    """Make all trials with candidates of these step times; a text is the kind of a failure."""
    records: list[TrialRecord] = []
    while (trial := trial_search.next_trial(plan, records, 0.0)) is not None:
        seconds = pace[trial.candidate]
        if isinstance(seconds, str):
            records.append(_record(trial.candidate, outcome=FAILED, kind=seconds))
            continue
        steps: list[float] = []
        while trial_search.goes_on(plan, records, trial, steps):
            steps.append(seconds)
        slower = trial.round == SCREEN and trial_search.is_slower(plan, records, steps)
        outcome = SLOWER if slower else MEASURED
        records.append(_record(trial.candidate, *steps, outcome=outcome, round=trial.round))
        assert len(records) < 100
    return records


@pytest.mark.parametrize(
    ("pace", "best", "screened"),
    [
        ((3.0, 1.0, 2.0, 4.0), 1, {0, 1, 2, 3}),
        ((1.0, 1.1, 1.2, 1.05), 0, {0, 1, 2, 3}),
        # Two that are slow, the nearer one more so: what lies beyond is left out.
        ((1.0, 1.5, 1.8, 0.5), 0, {0, 1, 2}),
        # The nearer one is faster: it may go on getting faster.
        ((1.0, 1.8, 1.5, 0.5), 3, {0, 1, 2, 3}),
        (("rank_crash", 2.0, 1.0, 3.0), 2, {0, 1, 2, 3}),
        (("rank_crash",) * 4, None, {0, 1, 2, 3}),
    ],
)
def test_the_fastest_is_found(
    pace: Sequence[float | str], best: int | None, screened: set[int]
) -> None:
    plan = _plan((8, 4, 2, 1))
    records = _search(plan, pace)
    assert trial_log.best(trial_log.scores(records, 4)) == best
    assert {one.candidate for one in records} == screened


def test_what_needs_more_memory_than_one_that_ran_out_of_it_is_not_tried() -> None:
    plan = _plan((2, 8, 4, 1))
    records = _search(plan, ("out_of_memory", 1.0, 1.0, 2.0))
    assert {one.candidate for one in records} == {0, 3}
    scores = trial_log.scores(records, 4)
    reason = trial_search.reason_to_skip(plan, scores, 1)
    assert reason == "with a micro batch of 2 it ran out of memory"


def test_other_settings_are_not_judged_by_those_that_differ_in_more_than_the_micro_batch() -> None:
    candidates = (TrialCandidate({}, {}, None, "one", 1), TrialCandidate({}, {}, None, "two", 8))
    records = _search(TrialPlan(candidates), ("out_of_memory", 1.0))
    assert trial_log.best(trial_log.scores(records, 2)) == 1


def test_the_best_are_measured_in_turn_and_back_and_the_baseline_with_them() -> None:
    plan = _plan((16, 8, 4, 2, 1), baseline=4, finalists=2)
    records = _search(plan, (1.0, 1.1, 1.2, 1.25, 1.28))
    finals = [one.candidate for one in records if one.round == FINAL]
    assert finals == [0, 1, 4, 4, 1, 0]
    assert {len(one.steps) for one in records if one.round == FINAL} == {plan.final_steps}


def test_what_takes_much_longer_than_the_best_is_not_measured_again_but_for_the_baseline() -> None:
    plan = _plan((8, 4, 2), baseline=0)
    finals = [one.candidate for one in _search(plan, (9.0, 3.0, 1.0)) if one.round == FINAL]
    assert set(finals) == {0, 2}
    # Scaling compares batches of any size.
    plan = _plan((8, 4, 2), slower=math.inf)
    finals = [one.candidate for one in _search(plan, (9.0, 3.0, 1.0)) if one.round == FINAL]
    assert set(finals) == {0, 1, 2}


def test_a_finalist_that_fails_is_out() -> None:
    plan = _plan((4, 2, 1))
    records = [_record(one, 1.0 + one / 10, 1.0 + one / 10) for one in range(3)]
    records.append(_record(0, round=FINAL, outcome=FAILED, kind="hang"))
    assert trial_search.next_trial(plan, records, 0.0) == Trial(1, FINAL)


def test_a_slow_trial_ends_after_one_measured_step() -> None:
    plan = _plan((2, 1))
    records = [_record(0, 1.0, 1.0)]
    trial = Trial(1, SCREEN)
    assert trial_search.goes_on(plan, records, trial, [])
    assert trial_search.goes_on(plan, records, trial, [1.2])
    assert not trial_search.goes_on(plan, records, trial, [1.4])
    assert not trial_search.goes_on(plan, records, trial, [1.2, 1.2])


def test_the_last_quarter_of_the_time_is_for_the_best() -> None:
    plan = _plan((4, 2, 1), seconds=100.0)
    records = [_record(0, 1.0, 1.0)]
    assert trial_search.next_trial(plan, records, 74.0) == Trial(1, SCREEN)
    assert trial_search.next_trial(plan, records, 76.0) == Trial(0, FINAL)
    assert trial_search.next_trial(plan, records, 100.0) is None
