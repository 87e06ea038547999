"""Numbers of a sweep, and the bounds of its distributions."""

from __future__ import annotations

import math
from typing import Any

from hpcrun.compile.source.problems import kind_of

DIGITS = 12
"""Significant digits of a number that was computed."""


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def tidy(value: float, digits: int = DIGITS) -> float:
    """Round off the noise of a number's last bits: 0.30000000000000004 is 0.3."""
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
