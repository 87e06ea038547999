"""The batch triple: train batch = micro batch x accumulation x ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.shared_dataclass import dataclass

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
KEYS = (TRAIN, MICRO, ACCUMULATION)
AUTO = "auto"
MOST = 10**12


@dataclass(frozen=True)
class Triple:
    """A consistent batch."""

    train: int
    """Samples of one optimizer step over all ranks."""
    micro: int
    """Samples of one forward pass on one rank."""
    accumulation: int
    """Forward passes of one optimizer step."""

    @classmethod
    def of_config(cls, deepspeed: Mapping[str, Any]) -> Triple | None:
        """Return the triple of a DeepSpeed configuration; None where it leaves a part open."""
        found = [one for key in KEYS if type(one := deepspeed.get(key)) is int and one > 0]
        return cls(*found) if len(found) == len(KEYS) else None

    def as_keys(self) -> dict[str, int]:
        """Return the triple under DeepSpeed's names."""
        return {TRAIN: self.train, MICRO: self.micro, ACCUMULATION: self.accumulation}

    def among(self, ranks: int) -> Triple | None:
        """Return the same global batch on another number of ranks, with no larger micro batches.

        None if no whole numbers fit.
        """
        share, rest = divmod(self.train, ranks)
        if rest or not share:
            return None
        return Triple(self.train, share, 1).within(self.micro)

    def within(self, most: int) -> Triple:
        """Return the same share of each rank in the largest micro batches of at most ``most``."""
        share = self.micro * self.accumulation
        micro = max(one for one in _divisors(share) if one <= most)
        return Triple(self.train, micro, share // micro)

    def halved(self, times: int) -> Triple:
        """Return the same share of each rank with its micro batch halved so often, at least 1."""
        found = self
        for _ in range(times):
            found = found.within(max(1, found.micro // 2))
        return found

    @property
    def most_halvings(self) -> int:
        """Return the number of times that `halved` makes the micro batch smaller."""
        return 0 if self.micro == 1 else 1 + self.halved(1).most_halvings

    def __str__(self) -> str:
        return f"{self.train} = {self.micro} x {self.accumulation}"


class Unsolvable(ValueError):
    """No triple fits what was given: ``key`` is wrong, or all together where it is None.

    ``nearest`` are triples that do fit, the closest first.
    """

    def __init__(self, message: str, key: str | None = None, nearest: tuple[Triple, ...] = ()):
        super().__init__(message)
        self.key, self.nearest = key, nearest


def solve(train: Any, micro: Any, accumulation: Any, ranks: int) -> Triple:
    """Solve the batch triple from any sufficient part of it; None and ``"auto"`` are open.

    Either ``train`` or ``micro`` must be given. What is not determined keeps the accumulation at 1,
    as DeepSpeed does. ``ranks`` is the data-parallel size. Raises Unsolvable if too little is
    given, what is given contradicts itself, or no whole numbers fit.
    """
    given = {
        key: _number(key, value)
        for key, value in zip(KEYS, (train, micro, accumulation), strict=True)
        if value is not None and value != AUTO
    }
    if TRAIN not in given and MICRO not in given:
        raise Unsolvable(
            f"the batch size cannot be solved: accepted are {TRAIN}, {MICRO} or both, "
            f"with or without {ACCUMULATION}"
        )
    t, m, a = (given.get(key) for key in KEYS)
    if t is None:
        assert m is not None
        if (train := m * (a or 1) * ranks) > MOST:
            raise Unsolvable(f"{TRAIN} would be {train:,}; accepted are at most {MOST:,}")
        return Triple(train, m, a or 1)
    if m is None:
        m, rest = divmod(t, (a or 1) * ranks)
        a = a or 1
    else:
        solved, rest = divmod(t, m * ranks)
        rest = rest or int(a is not None and a != solved)
        a = solved
    if rest or not m or not a:
        found = ", ".join(f"{key}={value}" for key, value in given.items())
        raise Unsolvable(
            f"no whole numbers fit {found} on {ranks} data-parallel ranks "
            f"({TRAIN} = {MICRO} x {ACCUMULATION} x {ranks})",
            nearest=nearest(given, ranks),
        )
    return Triple(t, m, a)


def nearest(given: dict[str, int], ranks: int, count: int = 4) -> tuple[Triple, ...]:
    """Return the triples closest to what was given, `TRAIN` among it, by relative distance."""

    def distance(triple: Triple) -> float:
        found = triple.as_keys()
        apart = [abs(math.log(found[key] / value)) for key, value in given.items()]
        return round(sum(apart) + 0.01 * sum(one > 0 for one in apart), 9)

    found = set(_candidates(given, ranks))
    ordered = sorted(found, key=lambda one: (distance(one), one.train, one.micro))
    return tuple(ordered[:count])


def _candidates(given: dict[str, int], ranks: int) -> Iterator[Triple]:
    train, micro, accumulation = given[TRAIN], given.get(MICRO), given.get(ACCUMULATION)
    per_rank = sorted({max(1, train // ranks), max(1, -(-train // ranks))})
    micros = {micro} if micro else set()
    steps = {accumulation} if accumulation else {1}
    for total in per_rank:
        divisors = _divisors(total)
        micros |= set(_closest(divisors, micro))
        steps |= set(_closest(divisors, accumulation))
        for one in _closest(divisors, micro) + _closest(divisors, accumulation):
            yield Triple(total * ranks, one, total // one)
            yield Triple(total * ranks, total // one, one)
    for one in micros:
        below = max(1, train // (one * ranks))
        for step in (below, below + 1, *steps):
            yield Triple(one * step * ranks, one, step)
    for step in steps:
        below = max(1, train // (step * ranks))
        for one in (below, below + 1):
            yield Triple(one * step * ranks, one, step)


def _number(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unsolvable(
            f"found {value!r}; accepted is a whole number of at least 1, or auto", key=key
        )
    if value > MOST:
        raise Unsolvable(f"found {value}; accepted are at most {MOST:,}, or auto", key=key)
    return value


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _closest(numbers: list[int], wanted: int | None) -> list[int]:
    if wanted is None:
        return []
    target = math.log(wanted)
    return sorted(numbers, key=lambda n: abs(math.log(n) - target))[:2]
