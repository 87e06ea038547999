"""The table of ``hpcrun status``, one row per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hpcrun.observe.read import value_columns
from hpcrun.observe.read.run_values import show
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.metric_trend import Trends
from hpcrun.observe.status.sparkline import amount, bar, sparkline
from hpcrun.observe.status.status import RunStatus
from hpcrun.observe.tables import Table, number
from hpcrun.text import age, brief, duration, listed, one_line, ranges, short_ends

_GIB = 2**30
_SPARE = ("JOB", "NODES", "PROGRESS", "TOK/S", "GPU-MEM", "UPDATED", "CAUSE", "TREND", "QUEUED")
# The states that a screen too small for all runs shows first.
_ORDER = (
    run_state.RUNNING,
    run_state.RESTARTING,
    run_state.FAILED,
    run_state.UNKNOWN,
    run_state.REQUEUED,
)


def build(
    selected: Sequence[Selected],
    found: Sequence[RunStatus],
    now: float,
    *,
    terminal: bool,
    trends: Trends | None = None,
    keys: Sequence[str] | None = None,
) -> Table:
    """Build the table; ``now`` is in seconds since the epoch.

    A ``terminal`` gets bars and, with ``trends``, sparklines of the metric; a pipe gets figures,
    and the reasons too. ``keys`` are those of the values to show, else `value_columns.choose`.
    """
    metric = shown_metric(selected, found)
    keys = value_columns.choose(selected)[0] if keys is None else keys
    headers = ["RUN", *short_ends(keys).values(), "STATE", "ATTEMPT", "CAUSE"]
    headers += ["STEP", "PROGRESS", *([metric] if metric else []), "TREND", "TOK/S", "GPU-MEM"]
    headers += ["ETA", "QUEUED", "JOB", "NODES", "UPDATED", "REASON"]
    hidden = {"REASON"} if terminal else {"TREND"}
    table = Table(
        [header for header in headers if header not in hidden],
        right=frozenset({"ATTEMPT", "STEP", "TOK/S", "GPU-MEM", "ETA", "QUEUED", metric or ""}),
        styled=frozenset({"STATE"}),
        spare=_SPARE,
    )
    for one, status in zip(selected, found, strict=True):
        values = [value_columns.value(one, key) for key in keys]
        cells = _cells(status, values, metric, now, terminal)
        if metric and trends is not None and status.attempt is not None:
            course = trends.values(one.paths, status.attempt, metric)
            cells[headers.index("TREND")] = sparkline(course)
        shown = zip(headers, cells, strict=True)
        table.add(*(cell for header, cell in shown if header not in hidden))
    return table


def most_telling(
    selected: Sequence[Selected], found: Sequence[RunStatus], most: int
) -> tuple[list[Selected], list[RunStatus]]:
    """Return at most so many runs, in their order; active ones first, then those with trouble."""
    places = sorted(range(len(found)), key=lambda i: (rank(found[i].state), i))
    kept = sorted(places[:most])
    return [selected[i] for i in kept], [found[i] for i in kept]


def rank(state: str) -> int:
    """Return the place of a state in the order of `most_telling`."""
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def reasons(found: Sequence[RunStatus]) -> list[str]:
    """Return one line for all runs of an experiment that share a reason."""
    shared: dict[tuple[str, str], list[int]] = {}
    for status in found:
        if status.reason:
            shared.setdefault((status.experiment, status.reason), []).append(status.run)
    return [
        f"{experiment}/{','.join(ranges(runs))}: {brief(reason)}"
        for (experiment, reason), runs in shared.items()
    ]


def shortened(found: Sequence[RunStatus]) -> str | None:
    """Return where a reason stands whole that a table has not; None if there is none."""
    cut = [one.name for one in found if one.reason and brief(one.reason) != one_line(one.reason)]
    return f"`hpcrun why {cut[0]}` has all of its reason" if cut else None


def counts(found: Sequence[RunStatus]) -> str:
    """Count states: ``3 running, 1 failed``, the most frequent first."""
    many = Counter(status.state for status in found).most_common()
    return ", ".join(f"{count} {name}" for name, count in many)


def _cells(
    status: RunStatus, values: Sequence[Any], metric: str | None, now: float, terminal: bool
) -> list[str]:
    step = "" if status.step is None else f"{status.step:,}"
    progress = ""
    if step and status.total_steps:
        step += f"/{status.total_steps:,}"
        share = (status.step or 0) / status.total_steps
        percent = f"{100 * share:.0f}%"
        progress = f"{bar(share)} {percent:>4}" if terminal else percent
    rate, wait, left = status.tokens_per_second, status.queued, status.remaining
    return [
        status.name,
        *("" if value is None else show(value) for value in values),
        status.state,
        "" if status.attempt is None else str(status.attempt),
        str(status.last_cause or ""),
        step,
        progress,
        *([number((status.metrics or {}).get(metric))] if metric else []),
        "",
        "" if rate is None else amount(rate),
        _memory(status),
        "" if left is None else duration(left),
        "" if wait is None else duration(wait),
        status.job_id or "",
        _nodes(status.nodes, status.spare_nodes),
        f"{age(now - status.updated)} ago" if status.updated else "",
        brief(status.reason or ""),
    ]


def _memory(status: RunStatus) -> str:
    if status.gpu_memory is None:
        return ""
    used = f"{status.gpu_memory / _GIB:.0f}"
    return f"{used}/{status.gpu_memory_total / _GIB:.0f}GiB" if status.gpu_memory_total else used


def _nodes(nodes: list[str] | None, spares: list[str] | None) -> str:
    """Return ``n1,n2 (+n3 spare)``."""
    if not nodes:
        return ""
    shown = listed(nodes, 4, ",", ",+{}")
    return f"{shown} (+{listed(spares, 2, ',', ',+{}')} spare)" if spares else shown


def shown_metric(selected: Sequence[Selected], found: Sequence[RunStatus]) -> str | None:
    """Return the objective if it was logged lately, else the loss, else the first metric."""
    logged = list(dict.fromkeys(name for status in found for name in status.metrics or {}))
    # Not through the typed view: its import would be a twentieth of `hpcrun status`.
    objective = selected[0].run.spec.get("objective") if selected else None
    for name in ((objective or {}).get("metric"), "loss"):
        if name in logged:
            return str(name)
    return logged[0] if logged else None
