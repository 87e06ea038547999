"""CMA-ES over the runs of a search, replayed from their values at each question.

The library ``cmaes`` draws points from a normal distribution and moves it towards the best of each
generation; it is told ranks alone. Of runs that end as they like a generation is as many as have
ended since the last, in the order of their ends: some of them were drawn before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrun.errors import HpcrunError

if TYPE_CHECKING:
    import optuna

# Of each key's range, in the middle of which the first points lie: as Optuna has it.
_SIGMA = 1 / 6


def points(
    known: Sequence[optuna.trial.FrozenTrial],
    space: Mapping[str, Any],
    *,
    better: str,
    seed: int,
    draw: int,
) -> Iterator[dict[str, Any]]:
    """Yield points for a run, endlessly.

    Parameters
    ----------
    known
        The other runs; a pruned one is worse than any that is complete, and than those that were
        pruned later.
    space
        Key -> a distribution of Optuna's for numbers.
    better
        ``min`` or ``max``.
    seed, draw
        Seeds of the search, and of the run that asks: the same ones get the same points.
    """
    try:
        import numpy
        from cmaes import CMA
    except ImportError as error:
        raise HpcrunError(
            f"sampler: cmaes cannot be used: {error}", hint="pip install 'hpcrun[search]'"
        ) from None
    count = len(space)
    evolution = CMA(
        mean=numpy.full(count, 0.5),
        sigma=_SIGMA,
        bounds=numpy.array([[0.0, 1.0]] * count),
        seed=seed,
    )
    sign = 1 if better == "min" else -1
    ended = [one for one in known if one.values]
    ended.sort(key=lambda one: (one.datetime_complete, one.number))
    size = evolution.population_size
    for begin in range(0, len(ended) - size + 1, size):
        ranked = sorted(ended[begin : begin + size], key=lambda one: _badness(one, sign))
        evolution.tell([
            (numpy.array([_to_unit(one.params[key], space[key]) for key in space]), float(rank))
            for rank, one in enumerate(ranked)
        ])  # fmt: skip
    evolution.reseed_rng(draw)
    while True:
        drawn = zip(space.items(), evolution.ask(), strict=True)
        yield {key: _from_unit(float(part), one) for (key, one), part in drawn}


def _badness(trial: optuna.trial.FrozenTrial, sign: int) -> tuple[float, float]:
    # A pruned one has the step of its end, and the others have none.
    step = -float(trial.last_step) if trial.last_step is not None else -math.inf
    return step, sign * float(trial.values[0])


def _ends(distribution: Any) -> tuple[float, float]:
    """Return the ends of a range, of whole numbers half a one further out; of a log scale logs."""
    half = 0.5 if isinstance(distribution.low, int) else 0.0
    low, high = distribution.low - half, distribution.high + half
    return (math.log(low), math.log(high)) if distribution.log else (low, high)


def _to_unit(value: float, distribution: Any) -> float:
    low, high = _ends(distribution)
    at = math.log(value) if distribution.log else value
    return (at - low) / (high - low)


def _from_unit(part: float, distribution: Any) -> float:
    low, high = _ends(distribution)
    at = low + part * (high - low)
    value = math.exp(at) if distribution.log else at
    value = round(value) if isinstance(distribution.low, int) else value
    kept: float = min(max(value, distribution.low), distribution.high)
    return kept
