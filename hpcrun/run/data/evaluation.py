"""Evaluation over all ranks: each sample once, and sums that do not depend on the number of ranks.

Batches are the same whatever the number of ranks, since results of a sample may differ in the last
bit with what else is in its batch; ranks take turns. Sums are exact, and rounded once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun.errors import HpcrunError, UsageError


def batches(count: int, size: int, place: int, places: int) -> Iterator[list[int]]:
    """Yield the batches of ``range(count)`` that belong to ``place`` of ``places``.

    Each place gets as many, of which the last may be empty: forward passes are collective where the
    model is divided between ranks.
    """
    if count < 1 or size < 1:
        raise UsageError(
            f"session.shard({count!r}, {size!r}): the number of samples and that of a batch have "
            "to be at least 1"
        )
    turns = math.ceil(math.ceil(count / size) / places)
    for turn in range(turns):
        start = (turn * places + place) * size
        yield list(range(start, min(start + size, count)))


def partial_sums(values: Any) -> list[float]:
    """Return numbers whose exact sum is that of ``values``, few whatever the number of values.

    ``values`` is a number, a tensor or array of any shape, or a sequence of numbers.
    """
    if hasattr(values, "tolist"):
        values = values.reshape(-1).tolist()
    found = [float(value) for value in (values if isinstance(values, Iterable) else [values])]
    parts: list[float] = []
    while rest := _rounded([*found, *(-part for part in parts)]):
        parts.append(rest)
        if not math.isfinite(rest):
            return [rest]
    return parts


def totals(said: Sequence[tuple[int, Mapping[str, list[float]]]]) -> dict[str, float]:
    """Return the sums over all ranks; raise HpcrunError if these gave different names.

    ``said`` has each rank's place and its partial sums by name. Ranks that share a place hold the
    same samples, which count once.
    """
    for rank, (_, parts) in enumerate(said):
        if parts.keys() != said[0][1].keys():
            raise HpcrunError(
                f"session.total: rank 0 has {_names(said[0][1])}, and rank {rank} has "
                f"{_names(parts)}",
                hint="give the same names on every rank; one without samples gives an empty list",
            )
    places = dict(reversed(said))
    return {
        name: _rounded([part for parts in places.values() for part in parts[name]])
        for name in said[0][1]
    }


def _rounded(values: list[float]) -> float:
    """Return the exact sum, rounded once; with infinities and NaN what adding them gives."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def _names(parts: Mapping[str, Any]) -> str:
    return ", ".join(parts) or "none"
