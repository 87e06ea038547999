"""The order of examples: a permutation for each epoch, the same everywhere and for ever."""

from __future__ import annotations

import collections
import itertools
import math
import time

import numpy
import pytest

from hpcrun.run.data.sample_order import examples_of, permuted, round_keys


@pytest.mark.parametrize("count", [*range(1, 70), 97, 256, 1000, 4097])
def test_every_epoch_has_every_example_once(count: int) -> None:
    order = examples_of(range(3 * count), count, seed=7)
    epochs = [order[epoch * count : (epoch + 1) * count] for epoch in range(3)]
    assert all(sorted(each) == list(range(count)) for each in epochs)
    if count > 9:
        assert len({tuple(each) for each in epochs}) == 3


def test_the_order_stays_as_it_is() -> None:
    """A run that was begun with an older hpcrun goes on with the same samples."""
    two = examples_of(range(20), 10, seed=0)
    assert two[:10] == [1, 0, 9, 3, 7, 4, 2, 8, 5, 6]
    assert two[10:] == [1, 5, 4, 8, 3, 9, 6, 2, 0, 7]
    large = examples_of((0, 1, 10**12 - 1, 10**12), 10**12, seed=3)
    assert large == [672329642172, 623064884099, 918731363110, 268598516577]


def test_without_shuffling_examples_come_as_they_lie() -> None:
    assert examples_of(range(7), 3, 5, shuffle=False) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_all_permutations_are_as_likely(count: int) -> None:
    """Chi-square over keys; fixed keys, so that the verdict is the same each time."""
    keys, all_orders = 8000, list(itertools.permutations(range(count)))
    places = numpy.tile(numpy.arange(count, dtype=numpy.uint64), keys)
    of_rounds = numpy.array([round_keys(key) for key in range(keys)], numpy.uint64).T
    images = permuted(places, count, of_rounds.repeat(count, axis=1))
    found = collections.Counter(map(tuple, images.reshape(keys, count).tolist()))
    expected = keys / len(all_orders)
    chi_square = sum((found[order] - expected) ** 2 / expected for order in all_orders)
    freedom = len(all_orders) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_neighbours_are_scattered() -> None:
    """The distance between examples that follow each other is that of two drawn at random."""
    count = 100_003
    order = examples_of(range(20_000), count, seed=1)
    mean = sum(abs(a - b) for a, b in itertools.pairwise(order)) / (len(order) - 1)
    assert mean == pytest.approx(count / 3, rel=0.02)
    # In every part of the epoch as many from every part of the dataset.
    tenths = collections.Counter(index * 10 // count for index in order)
    assert all(abs(number - 2000) < 200 for number in tenths.values())


def test_a_place_costs_the_same_in_any_epoch_of_any_size() -> None:
    began = time.perf_counter()
    samples = range(10**15, 10**15 + 2000)
    assert all(0 <= index < 10**11 for index in examples_of(samples, 10**11, seed=1))
    assert time.perf_counter() - began < 2.0


def test_samples_found_together_are_those_found_alone() -> None:
    samples = [*range(95, 140), 10**15, 3]
    alone = [examples_of([sample], 47, seed=9)[0] for sample in samples]
    assert examples_of(samples, 47, seed=9) == alone
