"""Numbers of a sweep: the bounds of distributions, their quantiles, and quasi-random numbers."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hpcrun.compile.source.problems import kind_of

_SIGNIFICANT = 6


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def tidy(value: float, digits: int = 12) -> float:
    """Round off the noise of a number's last bits: 0.30000000000000004 is 0.3.

    ``digits`` significant ones stay.
    """
    return float(f"{value:.{digits}g}")


def mistake_of(name: str, bounds: Any) -> str | None:
    """Return what is wrong with the bounds of a distribution; None where they are right."""
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_number, bounds)):
        return f"found {bounds if isinstance(bounds, list) else kind_of(bounds)}"
    low, high = bounds
    if name == "normal":
        return None if high > 0 else f"found {bounds}, whose deviation is not above 0"
    if name.startswith("int_") and not (is_whole(low) and is_whole(high)):
        return f"found {bounds}, which are not whole numbers"
    if not low < high:
        return f"found {bounds}, where the first is not below the second"
    if "log" in name and low <= 0:
        return f"found {bounds}, which do not begin above 0"
    if math.isinf(high - low) or ("log" in name and math.isinf(high / low)):
        return f"found {bounds}, which are too far apart"
    return None


def inside(value: float) -> float:
    """Clip a number so that no distribution maps it to infinity."""
    return min(max(value, 2**-53), 1 - 2**-53)


def halton(index: int, dimension: int, seed: str) -> float:
    """Return a member, from 1, of the scrambled Halton sequence: random permutations of digits.

    ``dimension`` numbers from 0 what is drawn together.
    """
    base, value, scale, place = _prime(dimension), 0.0, 1.0, 0
    while scale > 2**-32:
        index, digit = divmod(index, base)
        scale /= base
        value += _permutation(base, f"{seed}:{place}")[digit] * scale
        place += 1
    return inside(value)


def quantile(name: str, bounds: Sequence[Any]) -> Callable[[float], Any]:
    """Return the function from a number in (0, 1) to a rounded value of a distribution.

    ``name`` is ``uniform``, ``loguniform``, ``int_uniform``, ``int_loguniform`` or ``normal``, of
    which the bounds are mean and deviation.
    """
    return _QUANTILES[name](*bounds)


@functools.cache
def _permutation(base: int, seed: str) -> list[int]:
    generator = random.Random(seed)
    # Python's shuffle is not promised to stay the same; the order of random() is.
    return sorted(range(base), key=lambda _: generator.random())


@functools.cache
def _prime(number: int) -> int:
    found: list[int] = []
    for candidate in count(2):
        if all(candidate % prime for prime in found):
            found.append(candidate)
        if len(found) > number:
            break
    return found[-1]


def _between(low: float, high: float) -> Callable[[float], float]:
    return lambda drawn: _rounded(low + (high - low) * drawn, high - low)


def _log_between(low: float, high: float) -> Callable[[float], float]:
    ratio = math.log(high / low)
    digits = _SIGNIFICANT + max(0, math.ceil(-math.log10(ratio)))
    return lambda drawn: tidy(low * math.exp(ratio * drawn), digits)


def _whole_between(low: int, high: int) -> Callable[[float], int]:
    return lambda drawn: low + int((high - low + 1) * drawn)


def _whole_log_between(low: int, high: int) -> Callable[[float], int]:
    below, ratio = low - 0.5, math.log((high + 0.5) / (low - 0.5))
    return lambda drawn: min(max(round(below * math.exp(ratio * drawn)), low), high)


def _normal(mean: float, deviation: float) -> Callable[[float], float]:
    # Not at the top: it brings fractions and decimals, for the few sweeps that draw.
    from statistics import NormalDist

    inverse = NormalDist(mean, deviation).inv_cdf
    return lambda drawn: _rounded(inverse(drawn), deviation)


def _rounded(value: float, scale: float) -> float:
    """Round a value to a small part of the scale."""
    return float(round(value, _SIGNIFICANT - 1 - math.floor(math.log10(scale))))


_QUANTILES: dict[str, Callable[..., Callable[[float], Any]]] = {
    "uniform": _between,
    "loguniform": _log_between,
    "int_uniform": _whole_between,
    "int_loguniform": _whole_log_between,
    "normal": _normal,
}
