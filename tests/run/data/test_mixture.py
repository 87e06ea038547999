"""Mixtures: proportions and order follow from the number of a sample alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import UsageError
from hpcrun.run.data.mixture import Mixture

WEIGHTS = st.lists(st.floats(0.001, 100), min_size=1, max_size=6)


def _mixture(weights: list[float], count: int = 7, **options: Any) -> Mixture:
    parts = {f"p{i}": ([(i, k) for k in range(count + i)], w) for i, w in enumerate(weights)}
    return Mixture(parts, **options)


@given(WEIGHTS, st.integers(0, 2000))
def test_each_part_has_had_its_share_after_any_number_of_samples(
    weights: list[float], samples: int
) -> None:
    mixture = _mixture(weights)
    counts = mixture.counts(samples)
    assert sum(counts.values()) == samples
    for weight, count in zip(weights, counts.values(), strict=True):
        assert abs(count - samples * weight / math.fsum(weights)) < 4


@given(WEIGHTS, st.integers(0, 10**12), st.integers(0, 2**32))
def test_counts_are_those_of_the_samples_and_none_is_left_out(
    weights: list[float], first: int, seed: int
) -> None:
    mixture = _mixture(weights, seed=seed)
    drawn = [mixture[sample] for sample in range(first, first + 60)]
    before, after = mixture.counts(first), mixture.counts(first + 60)
    parts = Counter(part for part, _ in drawn)
    assert parts == Counter(
        {
            i: after[name] - before[name]
            for i, name in enumerate(after)
            if after[name] > before[name]
        }
    )
    for part, length in ((i, 7 + i) for i in parts):
        examples = [k for i, k in drawn if i == part]
        # From the next epoch of the part on, each example once until all have come.
        start = -before[f"p{part}"] % length
        for at in range(start, len(examples) - length + 1, length):
            assert sorted(examples[at : at + length]) == [*range(length)]


def test_order_follows_from_the_seed() -> None:
    one, same, other = (_mixture([3, 1], seed=seed) for seed in (1, 1, 2))
    drawn = [[of[sample] for sample in range(50)] for of in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [part for part, _ in drawn[0]] == [part for part, _ in drawn[2]]
    plain = _mixture([3, 1]).ordered(1, shuffle=False)
    assert [k for part, k in map(plain.__getitem__, range(20)) if part == 1] == [0, 1, 2, 3]
    assert one.name_of(0) == f"p0[{drawn[0][0][1]}]"
    assert one.parts == {"p0": [7, 3 << 30], "p1": [8, 1 << 30]}
    # Of the first part three of four samples come, so that it is through after nine.
    assert len(one) == 9


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({}, "no dataset is given"),
        ({"a": ([], 1)}, "'a' is empty"),
        ({"a": ([1], 0)}, "weight of 'a' is 0"),
        ({"a": ([1], math.nan)}, "weight of 'a' is nan"),
        ({"a": ([1], "1")}, "weight of 'a' is '1'"),
        ({"a": (iter([1]), 1)}, "no examples by number"),
        ({"a": (Mixture({"b": ([1], 1)}), 1)}, "is a mixture itself"),
        ({"a": ([1], 1e-12), "b": ([1], 1)}, "weight of 'a' is nothing beside"),
    ],
)
def test_bad_parts(parts: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Mixture(parts)
