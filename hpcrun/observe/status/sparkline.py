"""Numbers as pictures: bars, sparklines, short amounts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int = 10) -> str:
    """Draw a bar of ``width`` columns; ``share`` is clipped to 0 to 1."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Draw values, each column the mean of its part; values that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    columns = min(width, len(finite))
    edges = [round(i * len(finite) / columns) for i in range(columns + 1)]
    # Divided before they are added or subtracted, so that nothing overflows.
    means = [
        math.fsum(value / 2 / (high - low) for value in finite[low:high])
        for low, high in itertools.pairwise(edges)
    ]
    least, most = min(means), max(means)
    if most == least:
        return _HEIGHTS[0] * columns
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[round((mean - least) / (most - least) * top)] for mean in means)


def amount(value: float) -> str:
    """Format a number with three digits: ``950``, ``12.3k``, ``4.56M``."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"
