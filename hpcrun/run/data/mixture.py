"""Several datasets by weight, in an order that follows from the number of a sample alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcrun.errors import UsageError
from hpcrun.run.data.sample_order import examples_of
from hpcrun.run.rank.rng import derive

# Sample s belongs to the part in whose share `s * _STEP % _WHOLE` lies. The ratio of the two is the
# golden section's, whose multiples are spread most evenly: after any number of samples each part
# has had its share to within a few.
_WHOLE, _STEP = 1 << 32, 2_654_435_769
# The part of `derive` that stands for the order of a part's examples.
_PART = -2


class _Part(NamedTuple):
    name: str
    dataset: Any
    examples: int
    low: int
    high: int


class Mixture:
    """Datasets in the proportions of their weights, for ``session.loader``.

    ``mixture[s]`` is sample ``s``, however large: which part it is of, and which example there,
    depends on nothing else, so that restarts and other numbers of ranks change neither order nor
    proportions. Each part comes in epochs of its own, all of its examples once in each.

    Parameters
    ----------
    parts
        Name to a map-style dataset and its weight, a number above 0. Weights need no sum: what
        counts is their ratio. A weight is of examples, which have as many tokens in windows.
    seed, shuffle
        Of the order in which the examples of a part come; ``session.loader`` sets its own.

    Raises
    ------
    UsageError
        There is no part, one is empty or has no length, or a weight is none.
    """

    def __init__(
        self, parts: Mapping[str, tuple[Any, float]], *, seed: int = 0, shuffle: bool = True
    ) -> None:
        self._seed, self._shuffle = seed, shuffle
        for name, (dataset, weight) in parts.items():
            if not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
                raise UsageError(
                    f"Mixture: the weight of {name!r} is {weight!r}, no number above 0"
                )
            if isinstance(dataset, Mixture):
                raise UsageError(
                    f"Mixture: {name!r} is a mixture itself",
                    hint="give its parts to this one, each with the product of its weights",
                )
            if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
                raise UsageError(
                    f"Mixture: {name!r} ({type(dataset).__name__}) has no examples by number",
                    hint="give map-style datasets: dataset[index] and len(dataset)",
                )
            if not len(dataset):
                raise UsageError(f"Mixture: {name!r} is empty")
        if not parts:
            raise UsageError("Mixture: no dataset is given")
        sums = [0.0, *itertools.accumulate(weight for _, weight in parts.values())]
        ends = [round(one / sums[-1] * _WHOLE) for one in sums]
        self._parts = [
            _Part(name, dataset, len(dataset), ends[i], ends[i + 1])
            for i, (name, (dataset, _)) in enumerate(parts.items())
        ]
        for part in self._parts:
            if part.low == part.high:
                raise UsageError(f"Mixture: the weight of {part.name!r} is nothing beside the rest")

    def ordered(self, seed: int, shuffle: bool) -> Mixture:
        """Return the same mixture in another order."""
        parts = {one.name: (one.dataset, one.high - one.low) for one in self._parts}
        return Mixture(parts, seed=seed, shuffle=shuffle)

    @property
    def parts(self) -> dict[str, list[int]]:
        """Return of each part the number of its examples, and its share of 2**32 samples."""
        return {one.name: [one.examples, one.high - one.low] for one in self._parts}

    def __len__(self) -> int:
        """Return after how many samples the first part has had all of its examples once."""
        return min(one.examples * _WHOLE // (one.high - one.low) for one in self._parts) or 1

    def __getitem__(self, sample: int) -> Any:
        """Return a sample, counted from 0 over the whole run."""
        part, example = self._place(sample)
        return part.dataset[example]

    def name_of(self, sample: int) -> str:
        """Return what a sample is, as messages have it: ``web[1234]``."""
        part, example = self._place(sample)
        return f"{part.name}[{example}]"

    def counts(self, samples: int) -> dict[str, int]:
        """Return how many of the first so many samples are of each part."""
        return {one.name: _count(samples, one.low, one.high) for one in self._parts}

    def _place(self, sample: int) -> tuple[_Part, int]:
        if sample < 0:
            raise IndexError(f"sample {sample} of a mixture")
        at = sample * _STEP % _WHOLE
        number = next(i for i, one in enumerate(self._parts) if at < one.high)
        part = self._parts[number]
        before = _count(sample, part.low, part.high)
        seed = derive(self._seed, number, _PART)
        return part, examples_of([before], part.examples, seed, shuffle=self._shuffle)[0]


def _count(samples: int, low: int, high: int) -> int:
    """Return for how many of ``range(samples)`` the place is from ``low`` to ``high - 1``."""
    # x % m < c is x // m - (x - c) // m, for each x.
    return _sum(samples, _WHOLE - low) - _sum(samples, _WHOLE - high)


def _sum(count: int, added: int) -> int:
    """Return the sum of ``(i * _STEP + added) // _WHOLE`` over ``range(count)``.

    By the algorithm of Euclid, in which steps and whole change places: a few dozen divisions.
    """
    found, step, whole = 0, _STEP, _WHOLE
    while count:
        found += count * (count - 1) // 2 * (step // whole) + count * (added // whole)
        step, added = step % whole, added % whole
        above = step * count + added
        count, added = divmod(above, whole)
        step, whole = whole, step
    return found
