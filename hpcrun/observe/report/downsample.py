"""Fewer points that look like all of them."""

from __future__ import annotations

from collections.abc import Sequence


def lttb(xs: Sequence[float], ys: Sequence[float], most: int) -> list[int]:
    """Which points to keep, by largest triangles in three buckets (Steinarsson, 2013).

    Parameters
    ----------
    xs, ys
        Finite, of one length, ``xs`` ascending.
    most
        How many may be kept, at least 3.

    Returns
    -------
    list of int
        Indices, ascending, with the first and the last; all of them where there are no more.
    """
    count = len(xs)
    if count <= most:
        return list(range(count))
    size = (count - 2) / (most - 2)
    edges = [1 + int(size * bucket) for bucket in range(most - 1)]
    edges[-1] = count - 1
    kept = [0]
    for bucket in range(most - 2):
        start, end = edges[bucket], edges[bucket + 1]
        after = edges[bucket + 2] if bucket + 2 < len(edges) else count
        x = sum(xs[end:after]) / (after - end)
        y = sum(ys[end:after]) / (after - end)
        before_x, before_y = xs[kept[-1]], ys[kept[-1]]
        wide, high = before_x - x, y - before_y
        kept.append(
            max(
                range(start, end),
                key=lambda i: abs(wide * (ys[i] - before_y) - (before_x - xs[i]) * high),
            )
        )
    kept.append(count - 1)
    return kept
