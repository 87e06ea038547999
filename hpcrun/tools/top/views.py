"""The rows of each view: runs, the queue, nodes; and their order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.fields import TIME, WHOLE
from hpcrun.observe.read.node_usage import sample_values
from hpcrun.observe.read.selection import Selected, as_where
from hpcrun.observe.status import run_state, status_table
from hpcrun.observe.status.status import RunStatus
from hpcrun.observe.status.status_table import Trends
from hpcrun.observe.tables import Table
from hpcrun.policy.log_excerpt import folded
from hpcrun.state import files
from hpcrun.text import Say, age, brief, duration, one_line, plural, visible

RUNS, QUEUE, NODES = "runs", "queue", "nodes"
TREND = "TREND"

# Columns that a narrow terminal leaves out, the first ones first.
_SPARE = {
    RUNS: (
        *("JOB", "NODES", "UPDATED", "GPU-MEM", "ATTEMPT", "PROGRESS", "QUEUED", "TOK/S"),
        *("CAUSE", TREND),
    ),
    QUEUE: ("NODES",),
    NODES: ("MEMORY", "CPU"),
}
_WAITS = (run_state.PENDING, run_state.WAITING, run_state.REQUEUED, run_state.PLANNED)
_TITLES: dict[str, Callable[[RunStatus], Any]] = {
    "RUN": lambda one: (one.experiment, one.run),
    "STATE": lambda one: status_table.rank(one.state),
    "STEP": lambda one: one.step,
    "PROGRESS": lambda one: one.step / one.total_steps if one.step and one.total_steps else None,
    "TOK/S": lambda one: one.tokens_per_second,
    "GPU-MEM": lambda one: one.gpu_memory,
    "ETA": lambda one: one.remaining,
    "QUEUED": lambda one: one.queued,
    "UPDATED": lambda one: one.updated,
}
_PARTS = re.compile(r"(\d+)")
Look = Callable[[Say], tuple[list[Selected], list[RunStatus]]]
# A node's newest sample of telemetry: its time, and values by the key of a `Series`.
NodeSample = tuple[float, dict[str, float | None]]
_HOLD_NODES = (run_state.RUNNING, run_state.RESTARTING)
# Nodes whose telemetry is read for one view.
_MOST_NODES = 256
# Bytes at the end of a log, and the most characters of a line of it.
_TAIL, _LONGEST = 1 << 15, 2_000


@dataclass(frozen=True)
class TopView:
    """The rows of a view."""

    name: str
    table: Table
    targets: Sequence[tuple[int, ...]]
    """Row -> the places of its runs in the picture."""
    details: Sequence[str]
    """Row -> what there is no column for."""

    @property
    def spare(self) -> Sequence[str]:
        """Headers of columns that a narrow terminal omits, the first ones first."""
        return _SPARE[self.name]


def of_runs(picture: Picture, places: Sequence[int], sort: str, backwards: bool) -> TopView:
    """Return the runs at ``places``, sorted by the column with the header ``sort``."""
    table = picture.table
    ordered = _sorted(picture, places, sort, backwards)
    shown = Table(table.headers, [table.rows[place] for place in ordered], table.right)
    details = [_detail(picture.found[place]) for place in ordered]
    return TopView(RUNS, shown, [(place,) for place in ordered], details)


def of_queue(picture: Picture, places: Sequence[int]) -> TopView:
    """Return what waits: a row for runs of a job that wait for one reason."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for place in places:
        status = picture.found[place]
        if status.state in _WAITS:
            job = (status.job_id or "").partition("_")[0]
            key = (status.experiment, job, status.state, status.reason or "")
            groups.setdefault(key, []).append(place)
    headers = ("JOB", "RUNS", "STATE", "WAITED", "NODES", "EXPECTED", "WHY")
    table = Table(headers, right=frozenset({"WAITED", "NODES"}))
    details = []
    for (_, job, state, reason), members in groups.items():
        why, _, expected = reason.partition(run_state.EXPECTED)
        waited = [picture.found[place].queued for place in members]
        longest = max((each for each in waited if each is not None), default=None)
        nodes = {picture.selected[place].run.nodes for place in members}
        table.add(
            job,
            as_where(picture.selected[place] for place in members),
            state,
            "" if longest is None else duration(longest),
            "-".join(str(count) for count in sorted({min(nodes), max(nodes)})),
            expected,
            brief(why),
        )
        details.append(f"{plural(len(members), 'run')}: {brief(reason) or state}")
    return TopView(QUEUE, table, [tuple(members) for members in groups.values()], details)


def of_nodes(picture: Picture, places: Sequence[int], samples: Mapping[str, NodeSample]) -> TopView:
    """Return the nodes that the runs at ``places`` hold, with their last telemetry."""
    wanted, now = frozenset(places), time.time()
    held = {
        node: [(place, spare) for place, spare in runs if place in wanted]
        for node, runs in holders(picture).items()
    }
    nodes = sorted((node for node, runs in held.items() if runs), key=_natural)
    headers = ("NODE", "RUNS", "GPUS", "GPU", "GPU-MEM", "CPU", "MEMORY", "SAMPLED")
    table = Table(headers, right=frozenset(headers[2:]))
    details = []
    for node in nodes:
        runs = held[node]
        gpus = sum(picture.selected[place].run.resources.gpus_per_node or 0 for place, _ in runs)
        moment, values = samples.get(node, (None, {}))
        names = ", ".join(
            picture.found[place].name + (" (spare)" if spare else "") for place, spare in runs
        )
        table.add(
            node,
            names,
            str(gpus or ""),
            _figure(values.get("gpu"), "%"),
            _figure(values.get("gpu_memory"), " GiB"),
            _figure(values.get("cpu"), "%"),
            _figure(values.get("memory"), " GiB"),
            "" if moment is None else f"{age(now - moment)} ago",
        )
        known = "" if moment else "; no telemetry of it yet"
        details.append(f"{node}: {plural(len(runs), 'run')}{known}")
    return TopView(
        NODES, table, [tuple(place for place, _ in held[node]) for node in nodes], details
    )


def _sorted(picture: Picture, places: Sequence[int], sort: str, backwards: bool) -> list[int]:
    """Sort places; what has no value comes last, whichever way."""
    headers, found = picture.table.headers, picture.found
    column = list(headers).index(sort) if sort in headers else 0
    value = _TITLES.get(sort)
    keys: dict[int, Any] = {}
    for place in places:
        if value is not None:
            key = value(found[place])
        else:
            text = picture.table.rows[place][column]
            key = _number(text) if text else None
        if key is not None:
            keys[place] = key
    known = sorted(keys, key=lambda place: keys[place], reverse=backwards)
    return known + [place for place in places if place not in keys]


def _number(text: str) -> tuple[float, Any]:
    """Return a key by which numbers come before words, and are compared as numbers."""
    try:
        return (float(text.replace(",", "")), [])
    except ValueError:
        return (float("inf"), _natural(text))


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key by which ``node10`` comes after ``node9``."""
    parts = _PARTS.split(text)
    return [(int(part[:18]), "") if part.isdecimal() else (0, part) for part in parts]


def _detail(status: RunStatus) -> str:
    """Describe a run in words: why it is where it is, and where."""
    cause = (status.cause or {}).get("message")
    what = brief(status.reason or str(cause or ""))
    parts = [f"{status.name} {status.state}", status.label, what]
    if status.job_id:
        parts.append(f"job {status.job_id}")
    if status.nodes:
        parts.append(f"on {', '.join(status.nodes[:4])}" + " …" * (len(status.nodes) > 4))
    return one_line("; ".join(filter(None, parts)))


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


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


def log_end(picture: Picture, place: int, most: int) -> list[str]:
    """Return a title and the last lines of a run's log, at most so many in all.

    It is the log of the rank that failed, else of rank 0, of the newest attempt, without colours.
    """
    import click

    status = picture.found[place]
    if status.attempt is None:
        return [f"{status.name} has no log: no attempt has begun"]
    failed: Any = (status.cause or {}).get("rank") if status.state == run_state.FAILED else None
    rank = int(failed) if WHOLE.accepts(failed) else 0
    title = f"{status.name}, rank {rank} of attempt {status.attempt}"
    path = picture.selected[place].paths.attempt(status.attempt).rank_log(rank)
    try:
        data = files.read_tail(path, _TAIL)
    except (OSError, HpcrunError):
        return [f"{title} has no log yet"]
    lines = b"\n".join(folded(data)).decode(errors="replace").splitlines()[1 - most :]
    ends = [visible(click.unstyle(line[:_LONGEST])) for line in lines]
    return [f"{title}, its last lines (Enter follows all, t hides this)", *ends]


def courses(trends: Trends, picture: Picture, places: Iterable[int]) -> dict[str, list[float]]:
    """Return the values of the metric of the runs at these places, by their directories.

    ``trends`` reads each file only where it has grown.
    """
    if picture.metric is None:
        return {}
    found = {}
    for place in places:
        status = picture.found[place]
        if status.attempt is not None:
            paths = picture.selected[place].paths
            found[status.directory] = trends.values(paths, status.attempt, picture.metric)
    return found
