"""Points of a search that follow from a trial's place alone: of a grid, and quasi-random ones.

A space is the plain data of a plan: key -> form, each behind the keys that its conditions name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.compile.sweep.draws import halton, quantile
from hpcrun.state import chosen_point

Point = dict[str, Any]


def grid(space: Mapping[str, Any], point: Point | None = None) -> Iterator[Point]:
    """Yield all points of a space of choices and whole numbers, the last key varying fastest."""
    point = point or {}
    if not space:
        yield point
        return
    (key, form), *others = space.items()
    left = dict(others)
    if not chosen_point.calls_for(form, point):
        yield from grid(left, point)
        return
    for value in form.get("choice") or _whole(form):
        yield from grid(left, {**point, key: value})


def quasi_random(space: Mapping[str, Any], place: int, seed: str) -> Point:
    """Return the point at a place, from 0, of Halton's sequence."""
    point: Point = {}
    for dimension, (key, form) in enumerate(space.items()):
        if not chosen_point.calls_for(form, point):
            continue
        point[key] = value_at(form, halton(place + 1, dimension, f"{seed}:{key}"))
    return point


def value_at(form: Mapping[str, Any], drawn: float) -> Any:
    """Return the value of a key for a number that was drawn between 0 and 1."""
    (name, bounds), *_ = form.items()
    if name == "choice":
        return bounds[int(drawn * len(bounds))]
    return quantile("int_uniform" if name == "int" else name, bounds)(drawn)


def _whole(form: Mapping[str, Any]) -> range:
    low, high = next(iter(form.values()))
    return range(low, high + 1)
