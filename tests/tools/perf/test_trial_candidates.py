"""The keys that are varied, as they are typed."""

from __future__ import annotations

import pytest

from hpcrun.errors import UsageError
from hpcrun.tools.perf import trial_candidates
from hpcrun.tools.perf.trial_candidates import SpaceKey


def test_values_are_separated_by_commas_outside_of_brackets_and_quotes() -> None:
    words = ["config.a=1,2,2", "+deepspeed.b={x: [1,2]},'p,q'"]
    assert trial_candidates.parse_space(words) == [
        SpaceKey("config.a", ("1", "2")),
        SpaceKey("+deepspeed.b", ("{x: [1,2]}", "'p,q'")),
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["config.a"], "accepted is key=a,b"),
        (["config.a=1,,2"], "accepted is key=a,b"),
        (["config..a=1"], "accepted is key=a,b"),
        (["resources.nodes=1,2"], "share one allocation"),
        (["config.a=1", "+config.a=2"], "given twice"),
    ],
)
def test_what_cannot_be_varied_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        trial_candidates.parse_space(words)


def test_combinations_are_all_of_them_up_to_a_limit() -> None:
    keys = trial_candidates.parse_space(["config.a=1,2", "config.b=x,y,z"])
    found = trial_candidates.combinations(keys)
    assert len(found) == 6
    assert found[1] == {"config.a": "1", "config.b": "y"}
    assert trial_candidates.space_text(keys) == "6 combinations: a (2) x b (3)"
    many = SpaceKey("config.c", tuple(map(str, range(trial_candidates.MOST))))
    with pytest.raises(UsageError, match="at most 2,000"):
        trial_candidates.combinations([*keys, many])
    with pytest.raises(UsageError, match="nothing to vary"):
        trial_candidates.combinations([])
