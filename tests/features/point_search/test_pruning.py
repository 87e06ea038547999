"""Which runs of a search fall behind, and what becomes of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcrun.feature import Enough
from hpcrun.features.point_search import FEATURE, pruning
from hpcrun.features.point_search.pruning import (
    Course,
    Pruning,
    best_at,
    bracket,
    halving,
    lowest,
    median,
)
from hpcrun.features.point_search.study import PRUNED
from hpcrun.policy import causes
from hpcrun.policy.causes import Evidence
from hpcrun.state import chosen_point, ledger, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH
from tests.support.experiment import TRAIN, Experiment
from tests.support.waiting import until


def course(*values: float, every: int = 1) -> Course:
    return [((at + 1) * every, value) for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("step", "sign", "expected"),
    [(1, 1, 3.0), (3, 1, 1.0), (5, 1, 1.0), (6, 1, None), (5, -1, -4.0), (0, 1, math.inf)],
)
def test_the_best_until_a_step(step: int, sign: float, expected: float | None) -> None:
    assert best_at(course(3.0, math.nan, 1.0, math.inf, 4.0), step, sign) == expected


def test_no_values() -> None:
    assert best_at([], 0, 1.0) is None
    assert best_at(course(math.nan), 1, 1.0) == math.inf


FIVE = [course(*[value] * 10) for value in (1.0, 2.0, 3.0, 4.0, 5.0)]


@pytest.mark.parametrize(
    ("own", "others", "total", "sign", "expected"),
    [
        (course(3.5), FIVE, 10, 1, "3.5 at step 1, and the median of 5 is 3"),
        (course(3.0), FIVE, 10, 1, None),
        (course(9.0, 2.5), FIVE, 10, 1, None),
        (course(2.5), FIVE, 10, -1, "2.5 at step 1, and the median of 5 is 3"),
        (course(3.5), FIVE, 11, 1, None),  # not a tenth of the steps yet
        (course(3.5), FIVE[1:], 10, 1, None),
        # One ahead of all others is judged at their step, by what it had then.
        (course(*[9.0] * 11), FIVE, 100, 1, "9 at step 10, and the median of 5 is 3"),
        (course(*[9.0] * 10, 0.5), FIVE, 100, 1, "9 at step 10"),
        (course(*[9.0] * 8, 0.5, 9.0), FIVE, 10, 1, None),
        (course(*[9.0] * 11), FIVE, 101, 1, None),
        # Four that came further wait for the fifth.
        (course(*[9.0] * 9), [*[course(*[1.0] * 9)] * 4, course(2, 2)], 10, 1, "9 at step 2"),
        (course(9.0, 1.0), [*[course(*[1.0] * 9)] * 4, course(2)], 10, 1, "9 at step 1"),
        (course(9.0), [*FIVE[1:], []], 10, 1, None),
        (course(math.nan), FIVE, 10, 1, "inf at step 1"),
        (course(3.5), FIVE, None, 1, None),
    ],
)
def test_the_median(
    own: Course, others: list[Course], total: int | None, sign: float, expected: str | None
) -> None:
    found = median(own, others, total, sign)
    assert (found is None) == (expected is None)
    assert expected is None or (found is not None and expected in found[1])


@pytest.mark.parametrize(
    ("own", "others", "total", "expected"),
    [
        # Rungs at steps 1, 3 and 9 of 27.
        (course(2.5), FIVE, 27, "2.5 at step 1 is number 3 of 6"),
        (course(1.5), FIVE, 27, None),
        (course(1.5, 9, 9), FIVE, 27, None),
        (course(9, 9, 2.5), FIVE, 27, "2.5 at step 3 is number 3 of 6"),
        (course(9, 9, 2.5, *[2.4] * 6), FIVE, 27, "2.4 at step 9 is number 3 of 6"),
        (course(5.0), FIVE[:1], 27, None),  # two are too few
        (course(0.5), FIVE[:2], 27, None),
        (course(1.5), FIVE[:2], 27, "1.5 at step 1 is number 2 of 3"),
        (course(9.0), FIVE, 81, None),  # no rung yet
        (course(9.0), FIVE, None, None),
    ],
)
def test_halving(
    own: Course, others: list[Course], total: int | None, expected: str | None
) -> None:
    found = halving(own, others, total, 1.0)
    assert (found is None) == (expected is None)
    assert expected is None or (found is not None and expected in found[1])


@pytest.mark.parametrize(
    ("first", "expected"), [(0, 1), (1, 3), (2, 9), (3, None)], ids=lambda one: str(one)
)
def test_halving_in_a_bracket(first: int, expected: int | None) -> None:
    """Each bracket leaves out the first rungs."""
    steps = [1, 3, 9, 27]
    own = [course(*[9.0] * step) for step in steps]
    judged = [halving(one, [course(*[1.0] * 27)] * 3, 27, 1.0, first) for one in own]
    ended_at = [found[0] for found in judged if found]
    assert min(ended_at, default=None) == expected


@pytest.mark.parametrize(
    ("own", "others", "share", "expected"),
    [
        # Looks at steps 3, 6 and 9; five others have come as far.
        (course(9, 9, 4.5), FIVE, 0.34, "4.5 at step 3 is number 5 of 6"),
        (course(9, 9, 3.5), FIVE, 0.34, None),
        (course(9, 9, 5.5), FIVE, 0.17, "5.5 at step 3 is number 6 of 6"),
        (course(9, 9, 4.5), FIVE, 0.17, None),
        (course(9, 9), FIVE, 0.34, None),  # before the first look
        # The last value counts, not the best: it went on from there.
        (course(0, 0, 5.5, 0), FIVE, 0.17, "5.5 at step 3 is number 6 of 6"),
        (course(9, 9, 9, 9, 9, 0.5), FIVE, 0.34, None),
        (course(0, 0, 0, 0, 0, math.nan), FIVE, 0.17, "inf at step 6 is number 6 of 6"),
        # Of equals none is worse, but for what is no number beside others.
        (course(5, 5, 5), FIVE, 0.17, None),
        (course(1, 1, 1), [course(1, 1, 1)] * 5, 0.5, None),
        (course(1, 1, math.nan), [course(1, 1, math.nan)] * 5, 0.5, None),
        (course(1, 1, math.nan), [*[course(1, 1, math.nan)] * 4, FIVE[0]], 0.17, "inf at step 3"),
        (course(9, 9, 9), FIVE[:2], 0.34, "9 at step 3 is number 3 of 3"),
        (course(9, 9, 9), FIVE[:2], 0.25, None),  # of three none
        (course(9, 9, 9), [course(1, 1), *FIVE[:2]], 0.25, None),  # one has not come as far
        # It began at step 3 or 5 from another's checkpoint.
        ([(4, 9.0), (5, 9.0)], FIVE, 0.5, None),
        ([(6, 9.0), (7, 9.0)], FIVE, 0.5, "9 at step 6 is number 6 of 6"),
        (course(9, 9, 9), [[(4, 1.0), (9, 1.0)]] * 3, 0.5, None),
    ],
)
def test_the_worst_of_a_population(
    own: Course, others: list[Course], share: float, expected: str | None
) -> None:
    found = lowest(own, others, 3, share, 1.0)
    assert (found is None) == (expected is None)
    assert expected is None or (found is not None and expected in found[1])
    negative = [[(step, -value) for step, value in one] for one in others]
    mirrored = lowest([(step, -value) for step, value in own], negative, 3, share, -1.0)
    assert (mirrored is None) == (expected is None)


def test_brackets_are_drawn_by_their_shares() -> None:
    """As Optuna's HyperbandPruner for 27 times the least resource, by a factor of 3."""
    assert pruning._BRACKETS == [27, 12, 6, 4]
    drawn = [bracket(number, 1) for number in range(4_900)]
    assert drawn == [bracket(number, 1) for number in range(4_900)]
    assert drawn != [bracket(number, 2) for number in range(4_900)]
    for place, share in enumerate(pruning._BRACKETS):
        assert drawn.count(place) == pytest.approx(100 * share, rel=0.15)


def test_what_is_enough_is_no_failure() -> None:
    end = causes.decide(Evidence(stop=causes.PRUNED, enough="loss 5 at step 3", exit_code=143))
    assert (end.outcome, end.exit_code) == (causes.PRUNED, 0)
    assert end.cause == {"kind": "pruned", "message": "loss 5 at step 3"}


@pytest.fixture
def search(tmp_path: Path) -> Experiment:
    """Six runs of ten steps; the last is the worst, and another had another configuration."""
    found = Experiment(tmp_path)
    space = {"config.x": {"int": [0, 9]}}
    asked = {"space": space, "prune": "median", "seed": 0}
    found.submit(range(6), spec={SEARCH: asked, "progress": {"total": 10}})
    found.submit([6], spec={SEARCH: asked, "progress": {"total": 10}, "config": {"y": 1}})
    for number in range(7):
        chosen_point.write(found.run(number), ChosenPoint("", {"config.x": number}, {}, TRAIN))
        found.start(number)
        found.metrics(number, 1, [1, 2], loss=float(number) if number < 6 else 99.0)
        if number < 3:
            found.end(number)
    return found


def _pruning(search: Experiment, number: int, records: list[Any]) -> Pruning:
    run = plan_file.read(search.paths.submission(1).plan).run(number)

    def record(event: str, **fields: Any) -> None:
        records.append((event, fields))
        ledger.write(search.run(number), event, 1, **fields)

    found = FEATURE.in_supervisor(run, search.run(number).attempt(1), record)
    assert found is not None
    return found


def _turns(part: Pruning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_EVERY", 0.0)
    for _ in range(3):
        part.turn()
        until(lambda: part._looking is None or part._looking.wait(0), "a look", 10)


def test_a_run_that_falls_behind(search: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []
    part = _pruning(search, 5, records)
    with pytest.raises(Enough, match="loss 5 at step 2, and the median of 5 is 2"):
        _turns(part, monkeypatch)
    ((event, fields),) = records
    assert (event, fields["step"]) == (PRUNED, 2)
    part.turn()  # once
    (attempt,) = ledger.read(search.run(5))
    assert FEATURE.notice(attempt) == f"pruned: {fields['message']}"


def test_a_run_that_does_not(search: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []
    _turns(_pruning(search, 0, records), monkeypatch)
    assert records == []
    (attempt,) = ledger.read(search.run(0))
    assert FEATURE.notice(attempt) is None


def test_a_population_ends_its_worst(search: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []
    plan = plan_file.read(search.paths.submission(1).plan)
    run = plan.run(5)
    run.spec[SEARCH] |= {"prune": "none", "population": {"every": 2, "share": 0.25}}
    part = FEATURE.in_supervisor(run, search.run(5).attempt(1), lambda *a, **b: records.append(a))
    assert isinstance(part, Pruning)
    with pytest.raises(Enough, match="loss 5 at step 2 is number 6 of 6"):
        _turns(part, monkeypatch)
    assert records == [(PRUNED,)]


def test_hyperband_judges_among_those_of_a_bracket(
    search: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst run is ended only beside others that are in its bracket."""
    for brackets, expected in (([0] * 7, True), ([*range(5), 9, 0], False)):
        records: list[Any] = []
        part = _pruning(search, 5, records)
        part._rule = "hyperband"
        monkeypatch.setattr(pruning, "bracket", lambda number, _, found=brackets: found[number])
        if expected:
            with pytest.raises(Enough, match="loss 5 at step 2 is number 6 of 6"):
                _turns(part, monkeypatch)
        else:
            _turns(part, monkeypatch)
            assert records == []


def test_a_run_that_has_made_its_steps_ends_by_itself(
    search: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[Any] = []
    search.metrics(5, 1, [10], loss=5.0)
    _turns(_pruning(search, 5, records), monkeypatch)
    assert records == []


@pytest.mark.parametrize(
    ("outcome", "submission", "is_judged"),
    [
        ("pruned", 2, False),
        ("failed", 2, False),  # its supervisor died before it could record that end
        ("stopped", 1, True),  # preempted as it was to end, and requeued by Slurm
        (None, 2, True),  # never pruned
    ],
)
def test_a_run_that_a_person_has_go_on_is_not_pruned_again(
    search: Experiment, outcome: str | None, submission: int, is_judged: bool
) -> None:
    run = plan_file.read(search.paths.submission(1).plan).run(5)
    if outcome is not None:
        ledger.write(search.run(5), PRUNED, 1, step=1, message="m")
    search.end(5, 1, outcome or "failed")
    paths = search.start(5, 2, submission=submission)
    assert (FEATURE.in_supervisor(run, paths, lambda *_, **__: None) is not None) == is_judged
