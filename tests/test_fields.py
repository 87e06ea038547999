"""The kinds of fields, and what is wrong with a record in words."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.fields import (
    FLAG,
    INDEX,
    INDICES,
    METRICS,
    NAME,
    NUMBER,
    PATH,
    TEXT,
    TEXTS,
    TIME,
    WHOLE,
    Kind,
    mapping,
    wrong,
)

NAN, HUGE = float("nan"), 10**299


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (TEXT, ["", "x"], [1, [], {}, True]),
        (FLAG, [True, False], [1, "true"]),
        (WHOLE, [0, -3, 2**52], [1.0, True, "1", HUGE]),
        (INDEX, [0, 10**9], [-1, 10**9 + 1, 1.0, True, HUGE]),
        (NUMBER, [0, -1.5, 2], [NAN, float("inf"), True, "1", HUGE, 1e99]),
        (TIME, [0, 1.7e9], [-1, NAN, 1e12, "now"]),
        (TEXTS, [[], ["a"]], ["a", [1], [["a"]], {}]),
        (INDICES, [[], [0, 7]], ["0", [-1], [True], [HUGE]]),
        (METRICS, [{}, {"loss": NAN, "step": 1}], [[], {"loss": "1"}, {"loss": True}]),
        (NAME, ["a", "...", "a b"], ["", ".", "..", "a/b", "/", "a\0", "a" * 256, 1]),
        (PATH, ["", "/a/b"], ["a\0", 1]),
    ],
)
def test_what_a_field_may_hold(kind: Kind, good: list[Any], bad: list[Any]) -> None:
    assert [one for one in good if wrong({"field": one}, {"field": kind})] == []
    assert [one for one in bad if not wrong({"field": one}, {"field": kind})] == []
    assert wrong({"field": None, "unknown": bad}, {"field": kind}) is None


def test_what_is_wrong_is_said_with_its_place_and_in_few_words() -> None:
    kinds = {"cause": mapping({"rank": INDEX}), "time": TIME}
    assert wrong({"time": 1.0, "cause": {"rank": 3}}, kinds, ("time",)) is None
    assert wrong({"cause": {"rank": "3"}}, kinds) == "cause.rank is '3', not a whole number from 0"
    assert wrong({"cause": 3}, kinds) == "cause is 3, not a mapping"
    assert wrong({"time": None}, kinds, ("time",)) == "time is missing"
    problem = wrong({"time": ["\x1b[2J" * 10**6]}, kinds)
    assert problem is not None
    assert problem.isprintable()
    assert len(problem) < 100
