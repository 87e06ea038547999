"""Folding loses, doubles and reorders nothing of any rank, whatever the ranks write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.observe.logs.fold import Folded, LineFolder, fold

few = st.lists(st.sampled_from([b"a", b"b", b"c", b""]), max_size=25)
many = st.lists(st.binary(max_size=2).filter(lambda line: b"\n" not in line), max_size=25)
logs_of_ranks = st.lists(st.one_of(few, many), min_size=1, max_size=5)


def of_rank(told: list[Folded], rank: int) -> list[bytes]:
    return [line for mask, line in told if mask >> rank & 1]


def windowed(logs: list[list[bytes]], size: int) -> list[Folded]:
    """As files are read: some lines of each rank at a time."""
    told: list[Folded] = []
    window: dict[int, list[bytes]] = {rank: [] for rank in range(len(logs))}
    read = [0] * len(logs)
    while True:
        for rank, lines in enumerate(logs):
            if len(window[rank]) < size:
                window[rank] += lines[read[rank] : read[rank] + size]
                read[rank] += size
        left = frozenset(rank for rank, lines in enumerate(logs) if read[rank] < len(lines))
        now, window = fold(window, left)
        told += now
        if not left and not any(window.values()):
            return told


@given(logs_of_ranks, st.integers(2, 12))
@settings(max_examples=300)
def test_each_rank_s_lines_come_back_in_windows(logs: list[list[bytes]], size: int) -> None:
    told = windowed(logs, size)
    assert [of_rank(told, rank) for rank in range(len(logs))] == logs


@given(logs_of_ranks, st.lists(st.integers(0, 6), max_size=40))
@settings(max_examples=300)
def test_each_rank_s_lines_come_back_as_they_come(
    logs: list[list[bytes]], sizes: list[int]
) -> None:
    group = LineFolder()
    told: list[Folded] = []
    read = [0] * len(logs)
    for moment, size in enumerate(sizes):
        rank = moment % len(logs)
        group.feed(rank, logs[rank][read[rank] : read[rank] + size], float(moment))
        read[rank] += size
        told += group.take(before=moment - 3.0)
    for rank, lines in enumerate(logs):
        group.feed(rank, lines[read[rank] :], 100.0)
    told += group.take()
    assert [of_rank(told, rank) for rank in range(len(logs))] == logs
    assert group.is_empty


@pytest.mark.parametrize("size", [8, 64, 1000])
def test_lines_of_all_ranks_are_told_once(size: int) -> None:
    common = [b"step %d" % number for number in range(300)]
    logs = []
    for rank in range(8):
        lines = []
        for number, line in enumerate(common):
            if number % 8 == rank:
                lines.append(b"rank %d at %d" % (rank, number))
            lines.append(line)
            if rank < 4 and number % 50 == 0:
                lines.append(b"first node at %d" % number)
        logs.append(lines)
    told = windowed(logs, size)
    assert [of_rank(told, rank) for rank in range(8)] == logs
    # With only a few lines of each at a time, a rank may be that far behind the others.
    assert len(told) == 300 + 300 + 6 or size == 8
    assert len(told) < 700


def test_a_log_that_ends_early_does_not_keep_the_others_apart() -> None:
    logs = [[b"line %d" % number for number in range(count)] for count in (3, 200, 200)]
    assert len(windowed(logs, 16)) == 200


def test_what_all_wrote_is_told_at_once_and_the_rest_in_time() -> None:
    group = LineFolder()
    for rank in range(3):
        group.join(rank)
    group.feed(0, [b"x", b"y"], 1.0)
    assert group.take(before=0.5) == []
    group.feed(1, [b"x"], 2.0)
    group.feed(2, [b"x"], 2.0)
    assert group.take(before=0.5) == [(0b111, b"x")]
    assert group.take(before=0.9) == []
    assert group.take(before=1.0) == [(0b001, b"y")]
    assert group.is_empty


def test_other_orders_are_told_apart() -> None:
    group = LineFolder()
    group.feed(0, [b"x", b"y"])
    group.feed(1, [b"y", b"x"])
    told = group.take()
    assert len(told) == 3
    assert of_rank(told, 0) == [b"x", b"y"]
    assert of_rank(told, 1) == [b"y", b"x"]
