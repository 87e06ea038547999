"""The runs of a search of several objectives that no other run is better than in all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from hpcrun.state.plan import SEARCH, RunPlan

COLUMN = "pareto"
"""The column of results that has a star for such runs."""


def mark(rows: Iterable[tuple[RunPlan, dict[str, Any]]]) -> bool:
    """Put a star into the rows of these runs; return whether there is a search that asks for it.

    A row has ``experiment``, ``state`` and the last value of each metric. Those that are not
    completed, or lack a finite value, are left out. Runs are compared within their experiment.
    """
    groups: dict[str, list[tuple[list[float], dict[str, Any]]]] = {}
    for run, row in rows:
        objective, search = run.spec.get("objective"), run.spec.get(SEARCH) or {}
        if not objective or not search.get("more_objectives"):
            continue
        wanted = [objective, *search["more_objectives"]]
        group = groups.setdefault(json.dumps([row["experiment"], wanted]), [])
        signed = [_signed(row.get(one["metric"]), one["mode"]) for one in wanted]
        values = [one for one in signed if one is not None]
        if row["state"] == "completed" and len(values) == len(wanted):
            group.append((values, row))
    for group in groups.values():
        front: list[list[float]] = []
        # A later one is better than none before it.
        for values, row in sorted(group, key=lambda pair: pair[0]):
            if not any(_is_better(other, values) for other in front):
                front.append(values)
                row[COLUMN] = "*"
    return bool(groups)


def _signed(value: Any, mode: str) -> float | None:
    """Return a value of which less is better; None for what is no finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return -value if mode == "max" else value


def _is_better(one: list[float], other: list[float]) -> bool:
    """Check whether one is as good in all, and better in some."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
