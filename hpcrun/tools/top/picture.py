"""One look at the runs, and what is read beside it for the rows that are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.fields import TIME
from hpcrun.observe.read.node_usage import sample_values
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state, status_table
from hpcrun.observe.status.metric_trend import Trends
from hpcrun.observe.status.status import RunStatus
from hpcrun.observe.tables import Table
from hpcrun.state import files
from hpcrun.text import Say

Look = Callable[[Say], tuple[list[Selected], list[RunStatus]]]

# A node's newest sample of telemetry: its time, and values by the key of a `Series`.
NodeSample = tuple[float, dict[str, float | None]]

_HOLD_NODES = (run_state.RUNNING, run_state.RESTARTING)
# Nodes whose telemetry is read for one view.
_MOST_NODES = 256


@dataclass(frozen=True)
class Picture:
    """The state of the runs, their queue and their nodes at one look."""

    selected: Sequence[Selected]
    found: Sequence[RunStatus]
    table: Table
    """One row per run, as ``hpcrun status`` prints it; the column ``TREND`` is empty."""
    metric: str | None
    """The metric of that column."""
    time: float
    """When it was taken, in seconds since the epoch."""
    problems: tuple[str, ...] = ()
    """Why it may be incomplete: one line each."""


def take(look: Look) -> Picture:
    """Look at all runs; raises what ``look`` raises."""
    told: list[str] = []
    selected, found = look(told.append)
    now = time.time()
    problems = dict.fromkeys(" ".join(lines.split()) for lines in told)
    return Picture(
        selected=selected,
        found=found,
        table=status_table.build(selected, found, now, terminal=True),
        metric=status_table.shown_metric(selected, found),
        time=now,
        problems=tuple(problems),
    )


def holders(picture: Picture) -> Mapping[str, list[tuple[int, bool]]]:
    """Map each node to the runs that hold it: their places, and whether it is a spare of theirs."""
    nodes: dict[str, list[tuple[int, bool]]] = {}
    for place, status in enumerate(picture.found):
        if status.state in _HOLD_NODES:
            for node in status.nodes or ():
                nodes.setdefault(node, []).append((place, False))
            for node in status.spare_nodes or ():
                nodes.setdefault(node, []).append((place, True))
    return nodes


def node_samples(picture: Picture, nodes: Iterable[str]) -> dict[str, NodeSample]:
    """Read the newest sample of these nodes' telemetry; a node without one is left out."""
    found: dict[str, NodeSample] = {}
    held = holders(picture)
    for node in list(nodes)[:_MOST_NODES]:
        for place, _ in held.get(node, ()):
            attempt = picture.found[place].attempt
            if attempt is None:
                continue
            path = picture.selected[place].paths.attempt(attempt).telemetry(node)
            for line in files.read_back(path, 4096):
                moment: Any = line.get("time")
                if TIME.accepts(moment):
                    if node not in found or moment > found[node][0]:
                        found[node] = (float(moment), sample_values(line))
                    break
    return found


class MetricTrends:
    """Reads the course of the metric of runs, each file only where it has grown."""

    def __init__(self) -> None:
        self._trends = Trends()

    def read(self, picture: Picture, places: Iterable[int]) -> dict[str, list[float]]:
        """Return the values of the runs at these places of the picture, by their directories."""
        if picture.metric is None:
            return {}
        found = {}
        for place in places:
            status = picture.found[place]
            if status.attempt is not None:
                paths = picture.selected[place].paths
                found[status.directory] = self._trends.values(paths, status.attempt, picture.metric)
        return found
