"""The batch solver, as properties."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcrun.policy.batch import KEYS, MOST, Triple, Unsolvable, nearest, solve

small = st.integers(1, 512)
ranks_of = st.integers(1, 256)
maybe = st.none() | st.just("auto") | st.integers(1, 100_000)


@given(
    micro=small, accumulation=small, ranks=ranks_of, hidden=st.sampled_from([(), (0,), (1,), (2,)])
)
def test_any_sufficient_part_gives_the_triple_back(
    micro: int, accumulation: int, ranks: int, hidden: tuple[int, ...]
) -> None:
    whole = [micro * accumulation * ranks, micro, accumulation]
    part = [None if index in hidden else value for index, value in enumerate(whole)]
    assert solve(*part, ranks) == Triple(*whole)


@example(train=None, micro=49034, accumulation=99930, ranks=224)
@given(train=maybe, micro=maybe, accumulation=maybe, ranks=ranks_of)
def test_an_answer_holds_together_and_keeps_what_was_given(
    train: int | str | None, micro: int | str | None, accumulation: int | str | None, ranks: int
) -> None:
    wanted = dict(zip(KEYS, (train, micro, accumulation), strict=True))
    fixed = {key: value for key, value in wanted.items() if isinstance(value, int)}
    refused: Unsolvable | None = None
    try:
        found = solve(train, micro, accumulation, ranks)
    except Unsolvable as error:
        refused = error
    if refused is not None:
        assert refused.key is None
        for one in refused.nearest:
            assert one.train == one.micro * one.accumulation * ranks
            assert min(one.micro, one.accumulation) >= 1
        if isinstance(train, int):
            assert refused.nearest
        elif isinstance(micro, int):
            assert micro * fixed.get(KEYS[2], 1) * ranks > MOST
    else:
        assert found.train == found.micro * found.accumulation * ranks
        assert found.as_keys().items() >= fixed.items()


@given(train=st.integers(1, 5000), micro=st.integers(1, 64), ranks=st.integers(1, 64))
def test_the_nearest_is_no_further_than_keeping_the_micro_batch(
    train: int, micro: int, ranks: int
) -> None:
    below = max(1, train // (micro * ranks))
    kept = min(abs(train - micro * ranks * below), abs(train - micro * ranks * (below + 1)))
    offered = nearest({KEYS[0]: train, KEYS[1]: micro}, ranks, count=50)
    assert min(abs(train - one.train) for one in offered if one.micro == micro) <= kept


@given(micro=small, accumulation=small, times=st.integers(0, 12))
def test_a_halved_micro_batch_keeps_the_share(micro: int, accumulation: int, times: int) -> None:
    whole = Triple(micro * accumulation * 4, micro, accumulation)
    found, before = whole.halved(times), whole.halved(max(0, times - 1))
    assert (found.train, found.micro * found.accumulation) == (whole.train, micro * accumulation)
    assert found.micro <= max(1, before.micro // 2) if times else found == whole
    assert (found.micro == 1) == (times >= whole.most_halvings)


@pytest.mark.parametrize(
    ("micro", "accumulation", "sizes"),
    [(8, 1, [8, 4, 2, 1, 1]), (6, 1, [6, 3, 1, 1]), (5, 2, [5, 2, 1]), (9, 4, [9, 4, 2, 1])],
)
def test_an_odd_micro_batch_takes_the_next_smaller_divisor(
    micro: int, accumulation: int, sizes: list[int]
) -> None:
    whole = Triple(micro * accumulation * 2, micro, accumulation)
    assert [whole.halved(times).micro for times in range(len(sizes))] == sizes


def test_a_configuration_that_leaves_a_part_open_has_no_triple() -> None:
    whole = Triple(32, 4, 4)
    assert Triple.of_config(whole.as_keys()) == whole
    for key in KEYS:
        assert Triple.of_config({**whole.as_keys(), key: "auto"}) is None
        assert Triple.of_config({**whole.as_keys(), key: True}) is None


@pytest.mark.parametrize("bad", [0, -4, 2.0, "8", True])
def test_what_is_no_positive_whole_number_is_named(bad: object) -> None:
    with pytest.raises(Unsolvable) as error:
        solve(bad, 1, 1, 2)
    assert error.value.key == "train_batch_size"


def test_the_accumulation_alone_is_not_enough() -> None:
    with pytest.raises(Unsolvable, match="accepted are train_batch_size"):
        solve("auto", None, 4, 2)


def test_the_nearest_come_closest_first() -> None:
    with pytest.raises(Unsolvable) as error:
        solve(250, 4, None, 16)
    assert [str(one) for one in error.value.nearest][:2] == ["256 = 4 x 4", "192 = 4 x 3"]


@given(micro=small, accumulation=st.integers(1, 64), before=ranks_of, ranks=ranks_of)
def test_another_number_of_ranks_has_the_same_batch_or_none(
    micro: int, accumulation: int, before: int, ranks: int
) -> None:
    whole = Triple(micro * accumulation * before, micro, accumulation)
    found = whole.among(ranks)
    if found is None:
        assert whole.train % ranks
    else:
        assert found.train == whole.train == found.micro * found.accumulation * ranks
        assert found.micro <= micro


@pytest.mark.parametrize(
    ("ranks", "micro", "accumulation"), [(8, 4, 2), (4, 4, 4), (16, 4, 1), (32, 2, 1), (64, 1, 1)]
)
def test_micro_batches_are_as_large_as_they_may_be(
    ranks: int, micro: int, accumulation: int
) -> None:
    assert Triple(64, 4, 2).among(ranks) == Triple(64, micro, accumulation)
