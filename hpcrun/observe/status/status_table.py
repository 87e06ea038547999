"""The table of ``hpcrun status``, one row per run, with bars and curves; its live screen."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.observe.read import run_values
from hpcrun.observe.read.run_values import show
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import RunStatus, best_value
from hpcrun.observe.tables import Table, number
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import files, metrics_file
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import SEARCH
from hpcrun.text import age, brief, duration, listed, one_line, plural, ranges, short_ends

if TYPE_CHECKING:
    from rich.console import Console, Group

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
# What a trial of a search counts as -> the states of its run; all others are left.
_TRIALS = {
    run_state.COMPLETED: (run_state.COMPLETED,),
    run_state.PRUNED: (run_state.PRUNED,),
    run_state.RUNNING: (run_state.RUNNING, run_state.RESTARTING, run_state.REQUEUED),
    run_state.FAILED: (run_state.FAILED,),
    run_state.CANCELLED: (run_state.CANCELLED,),
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
# Bytes at the end of a long file.
_FIRST_LOOK = 1 << 18
_MOST_POINTS = 2048
# Most lines of reasons, and lines around the table.
_REASONS, _AROUND = 5, 5


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
    and the reasons too. ``keys`` are those of the values to show, else `run_values.choose_columns`.
    Where experiments show another metric each, its name stands in the cell.
    """
    metrics = _metrics(selected, found)
    names = [*dict.fromkeys(filter(None, metrics.values()))]
    metric = names[0] if len(names) == 1 else "METRIC" if names else None
    keys = run_values.choose_columns(selected)[0] if keys is None else keys
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
        values = [run_values.column_value(one, key) for key in keys]
        own = metrics[status.experiment]
        value = number((status.metrics or {}).get(own or ""))
        value = f"{own} {value}" if value and len(names) > 1 else value
        cells = _cells(status, values, [value] if metric else [], now, terminal)
        if own and trends is not None and status.attempt is not None:
            course = trends.values(one.paths, status.attempt, own)
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
    status: RunStatus, values: Sequence[Any], metric: Sequence[str], now: float, terminal: bool
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
        *metric,
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


def _metrics(selected: Sequence[Selected], found: Sequence[RunStatus]) -> dict[str, str | None]:
    """Return experiment -> the metric that its runs show."""
    pairs: dict[str, list[tuple[Selected, RunStatus]]] = {}
    for one, status in zip(selected, found, strict=True):
        pairs.setdefault(status.experiment, []).append((one, status))
    return {name: shown_metric(*zip(*those, strict=True)) for name, those in pairs.items()}


def shown_metric(selected: Sequence[Selected], found: Sequence[RunStatus]) -> str | None:
    """Return the objective if it was logged lately, else the loss, else the first metric."""
    logged = list(dict.fromkeys(name for status in found for name in status.metrics or {}))
    # Not through the typed view: its import would be a twentieth of `hpcrun status`.
    objective = selected[0].run.spec.get("objective") if selected else None
    for name in ((objective or {}).get("metric"), "loss"):
        if name in logged:
            return str(name)
    return logged[0] if logged else None


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


@dataclass
class _Trend:
    path: Path | None = None
    offset: int = 0
    points: list[tuple[int, float]] = field(default_factory=list)


class Trends:
    """Reads values of a metric by run; each call reads what was written since the last one."""

    def __init__(self) -> None:
        self._trends: dict[tuple[Path, str], _Trend] = {}

    def values(self, run: RunPaths, attempt: int, metric: str) -> list[float]:
        """Return the values so far, in the order of steps; a replayed step replaces the earlier."""
        trend = self._trends.setdefault((run.directory, metric), _Trend())
        path = run.attempt(attempt).metrics
        if path != trend.path:
            trend.path, trend.offset = path, 0
        for step, value in self._read(trend, path, metric):
            while trend.points and trend.points[-1][0] >= step:
                trend.points.pop()
            trend.points.append((step, value))
        if len(trend.points) > _MOST_POINTS:
            del trend.points[::2]
        return [value for _, value in trend.points]

    def _read(self, trend: _Trend, path: Path, metric: str) -> list[tuple[int, float]]:
        try:
            start = max(trend.offset, path.stat().st_size - _FIRST_LOOK)
            found, trend.offset = files.read_on(path, start)
        except OSError:
            return []
        lines = metrics_file.parse(found)
        return [(line.step, line.values[metric]) for line in lines if metric in line.values]


def search_line(each: Sequence[tuple[Selected, RunStatus]]) -> str | None:
    """Return how far the runs of a search are, and the best of their last values.

    None if they are of no search, or of several.
    """
    search = each[-1][0].run.spec.get(SEARCH) if each else None
    if search is None or len({one.experiment.directory for one, _ in each}) > 1:
        return None
    found = f"search of {trials_text(status.state for _, status in each)}"
    rule = search.get("prune", "none")
    if rule != "none" and any(one.step and not one.total_steps for _, one in each):
        found += f"; prune: {rule} ends no run of which nothing says the total (progress.total)"
    if (best := best_value(each)) is None:
        return found
    label = next(one.run.label for one, _ in each if one.run.number == best["run"])
    value = f"{best['metric']} {number(best['value'])}"
    return f"{found}; best last value: {value}, run {best['run']}, {label}"


def trial_counts(states: Iterable[str]) -> dict[str, int]:
    """Return the number of trials by what became of them, and how many are ``left``."""
    many = Counter(states)
    found = {name: sum(many[one] for one in those) for name, those in _TRIALS.items()}
    return {**found, "left": many.total() - sum(found.values())}


def trials_text(states: Iterable[str]) -> str:
    """Return ``40 trials: 22 completed, 9 pruned, 6 running, 3 left``."""
    found = trial_counts(states)
    parts = ", ".join(f"{count} {name}" for name, count in found.items() if count)
    return f"{plural(sum(found.values()), 'trial')}: {parts}"


class Screen:
    """Renders as many runs as fit on a terminal, active ones first."""

    def __init__(self, console: Console, *, alike: bool = True) -> None:
        self._console = console
        self._alike = alike
        self._trends = Trends()

    def render(
        self,
        selected: Sequence[Selected],
        found: Sequence[RunStatus],
        problem: str | None = None,
    ) -> Group:
        """Render the screen; ``problem`` is why the cluster's answer is missing."""
        from rich.console import Group
        from rich.text import Text

        now = time.time()
        lines = reasons(found)
        shown_lines = lines[:_REASONS]
        search = search_line([*zip(selected, found, strict=True)])
        around = _AROUND + len(shown_lines) + bool(problem) + bool(search)
        room = max(3, self._console.height - around)
        shown = most_telling(selected, found, room)
        keys = run_values.choose_columns(shown[0], alike=self._alike)[0]
        table = build(*shown, now, terminal=True, trends=self._trends, keys=keys)
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        parts: list[object] = [Text(f"{clock}  {counts(found)}", style="bold")]
        if search:
            parts.append(Text(one_line(search), no_wrap=True, overflow="ellipsis"))
        if problem:
            parts.append(Text(one_line(problem), style="yellow"))
        fitted = table.fitted(self._console.width)
        parts.append(fitted or Text(table.plain(), no_wrap=True, overflow="crop"))
        hidden = len(found) - len(shown[1])
        if hidden:
            parts.append(Text(f"… {plural(hidden, 'more run')}", style="dim"))
        parts += [Text(one_line(line), no_wrap=True, overflow="ellipsis") for line in shown_lines]
        if rest := len(lines) - len(shown_lines):
            parts.append(Text(f"… {plural(rest, 'more reason')}", style="dim"))
        parts.append(Text("Ctrl-C leaves; the runs go on", style="dim"))
        return Group(*parts)  # type: ignore[arg-type]
