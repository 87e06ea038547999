"""The order of a dataset's examples over a whole run: a permutation for each epoch.

It is computed place by place, without memory or time for the others, so that a run may begin
anywhere in an epoch of any size. It depends on nothing but its arguments: `torch.randperm` may give
another order in another release, and takes 8 bytes an example on every rank.
"""

from __future__ import annotations

import functools
import math

from hpcrun.run.rank.rng import derive

# Rounds of the Feistel network, and the part of `derive` that stands for an epoch's order.
_ROUNDS = 12
_ORDER = -1
_MASK = (1 << 64) - 1


def example_of(sample: int, count: int, seed: int, *, shuffle: bool = True) -> int:
    """Return the index of the example that is a sample of the run.

    Epochs follow each other without a gap: sample ``s`` (from 0) belongs to epoch ``s // count``.

    Parameters
    ----------
    sample
        The number of the sample, counted over the whole run.
    count
        The number of examples in an epoch, at least 1.
    seed
        Each epoch's order is a function of (seed, epoch).
    shuffle
        False for the dataset's own order in each epoch.
    """
    epoch, place = divmod(sample, count)
    return _of_epoch(count, seed, epoch)(place) if shuffle else place


class Permutation:
    """A permutation of ``range(count)`` by a Feistel network, which ``key`` chooses.

    The network permutes the cells of a table that is about square and has at least ``count`` of
    them; a cell outside ``range(count)`` is permuted again, until it is inside.
    """

    def __init__(self, count: int, key: int) -> None:
        self._count = count
        self._rows = math.isqrt(count - 1) + 1
        self._columns = -(-count // self._rows)
        keys = [derive(key, number) for number in range(_ROUNDS)]
        self._rounds = [*zip(keys[::2], keys[1::2], strict=True)]

    def __call__(self, place: int) -> int:
        """Return the image of ``place``, which is in ``range(count)``."""
        count, rows, columns = self._count, self._rows, self._columns
        while True:
            row, column = divmod(place, columns)
            # Each half is added the finalizer of SplitMix64 of the other: written out, as calls
            # would take as long again, and this is done for each sample.
            for key, other in self._rounds:
                value = column ^ key
                value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
                value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
                row = (row + (value ^ (value >> 31))) % rows
                value = row ^ other
                value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
                value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
                column = (column + (value ^ (value >> 31))) % columns
            place = row * columns + column
            if place < count:
                return place


@functools.lru_cache(maxsize=4)
def _of_epoch(count: int, seed: int, epoch: int) -> Permutation:
    return Permutation(count, derive(seed, epoch, _ORDER))
