"""The order of a dataset's examples over a whole run: a permutation for each epoch.

It is computed place by place, without memory or time for the others, so that a run may begin
anywhere in an epoch of any size. It depends on nothing but its arguments: `torch.randperm` may give
another order in another release, and takes 8 bytes an example on every rank.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrun.run.rank.rng import derive

if TYPE_CHECKING:
    from numpy import uint64
    from numpy.typing import NDArray

# Rounds of the Feistel network, and the part of `derive` that stands for an epoch's order.
_ROUNDS = 12
_ORDER = -1


def examples_of(
    samples: Sequence[int], count: int, seed: int, *, shuffle: bool = True
) -> list[int]:
    """Return the indices of the examples that are samples of the run, by their numbers in it.

    Epochs of ``count`` examples follow each other without a gap: sample ``s`` (from 0) belongs to
    epoch ``s // count``. Each epoch's order is a function of (seed, epoch), without ``shuffle`` the
    dataset's own. A few hundred samples take little longer than one.
    """
    import numpy

    epochs, places = numpy.divmod(numpy.array(samples, numpy.uint64), numpy.uint64(count))
    if shuffle:
        different, which = numpy.unique(epochs, return_inverse=True)
        keys = [round_keys(derive(seed, epoch, _ORDER)) for epoch in different.tolist()]
        places = permuted(places, count, numpy.array(keys, numpy.uint64).T[:, which])
    found: list[int] = places.tolist()
    return found


@functools.lru_cache(maxsize=4)
def round_keys(key: int) -> list[int]:
    """Return the key of each round of the network, of the permutation's one."""
    return [derive(key, number) for number in range(_ROUNDS)]


def permuted(places: NDArray[uint64], count: int, keys: NDArray[uint64]) -> NDArray[uint64]:
    """Return the image of each place in a permutation of ``range(count)`` by a Feistel network.

    The network permutes the cells of a table that is about square and has at least ``count`` of
    them; a cell outside ``range(count)`` is permuted again, until it is inside.

    Parameters
    ----------
    places
        (n,), each in ``range(count)``.
    keys
        (rounds, n): the `round_keys` of each place's permutation.
    """
    import numpy

    side = math.isqrt(count - 1) + 1
    rows, columns = numpy.uint64(side), numpy.uint64(-(-count // side))
    images: NDArray[uint64] = places.copy()
    left = numpy.arange(len(places))
    while len(left):
        row, column = numpy.divmod(images[left], columns)
        for number in range(0, len(keys), 2):
            row = (row + _mixed(column ^ keys[number]) % rows) % rows
            column = (column + _mixed(row ^ keys[number + 1]) % columns) % columns
        images[left] = row * columns + column
        outside = images[left] >= count
        left, keys = left[outside], keys[:, outside]
    return images


def _mixed(value: NDArray[uint64]) -> NDArray[uint64]:
    """Return the finalizer of SplitMix64 of each value; products lose what is above 64 bits."""
    import numpy

    value = (value ^ (value >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    mixed: NDArray[uint64] = value ^ (value >> numpy.uint64(31))
    return mixed
