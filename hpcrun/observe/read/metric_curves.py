"""Metrics of a run across its attempts, without replayed steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from hpcrun.errors import BrokenFile
from hpcrun.fields import TIME
from hpcrun.shared_dataclass import dataclass, field, replace
from hpcrun.state import files, metrics_file, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.session_log import SessionLog

TAIL_BYTES = 16384
PATIENCE = 8
DIGITS = 5
# Steps and values of a run's metrics that are kept in memory.
_MOST = 4_000_000


@dataclass
class Curve:
    """Logged values by step."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """Step -> values, ascending; lines of one step are merged."""
    time: float | None = None
    """Time of the newest line, in seconds since the epoch."""
    times: dict[int, float] = field(default_factory=dict)
    """Step -> time of its last line, where known."""

    @property
    def names(self) -> list[str]:
        """All logged metrics, in the order of first appearance."""
        return list(dict.fromkeys(name for values in self.steps.values() for name in values))

    def values(self, metric: str) -> list[tuple[int, float]]:
        """Return the steps at which ``metric`` was logged, with its values."""
        return [(step, found[metric]) for step, found in self.steps.items() if metric in found]

    def first(self, metric: str) -> float | None:
        """Return the value at the earliest step."""
        values = self.values(metric)
        return values[0][1] if values else None

    def last(self, metric: str) -> float | None:
        """Return the value at the latest step."""
        values = self.values(metric)
        return values[-1][1] if values else None

    def best(self, metric: str, mode: str = "min") -> tuple[int, float] | None:
        """Return step and value of the least (``min``) or greatest (``max``) finite value."""
        finite = [pair for pair in self.values(metric) if math.isfinite(pair[1])]
        if not finite:
            return None
        choose = max if mode == "max" else min
        return choose(finite, key=lambda pair: pair[1])


@dataclass(frozen=True)
class Latest:
    """The progress of a run, from the ends of its files."""

    step: int | None = None
    """Finished optimizer steps; None while nothing was logged or restored."""
    total_steps: int | None = None
    """The session's announcement."""
    values: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric that was logged lately."""
    time: float | None = None
    """Time of the newest line, in seconds since the epoch."""
    seconds_per_step: float | None = None
    """Between the lines that were read, saves and evaluations included; None for a single step."""
    tokens_per_second: float | None = None
    """As logged, else from the logged number of ``tokens`` so far; None without either."""

    @property
    def remaining(self) -> float | None:
        """Seconds that the remaining steps take; None if unknown."""
        if self.step is None or self.total_steps is None or self.seconds_per_step is None:
            return None
        return max(0, self.total_steps - self.step) * self.seconds_per_step

    def bounded(self) -> Latest:
        """Return the same with no step beyond the total.

        Who counts from another number, or one line more, is at the end; a total that lies further
        back is none.
        """
        step, total = self.step, self.total_steps
        if step is None or total is None or step <= total:
            return self
        is_end = step - total <= max(1, total // 100)
        return replace(self, step=total) if is_end else replace(self, total_steps=None)


def read(run: RunPaths) -> Curve:
    """Read all metrics of a run.

    If an attempt restored step S, lines of earlier attempts beyond S were replayed and are dropped.
    An attempt without a restored step (a plain script) replaces lines from its first step on.
    Those of attempts that counted in another unit than the newest are dropped.

    Raises BrokenFile if a file cannot be read, or has more values than fit into memory.
    """
    steps: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    newest: float | None = None
    left = _MOST
    logs = [(attempt, session_log.read(attempt)) for attempt in run.attempts()]
    unit = next((log.unit for _, log in reversed(logs) if log.unit is not None), None)
    for attempt, log in logs:
        if log.unit not in (None, unit):
            continue
        own: dict[int, dict[str, float]] = {}
        try:
            for step, when, values in metrics_file.parse(files.read_lines(attempt.metrics)):
                own.setdefault(step, {}).update(values)
                left -= 1 + len(values)
                if left < 0:
                    raise BrokenFile.of(attempt.metrics, f"it has more than {_MOST:,} values")
                if when is not None:
                    newest = times[step] = when
        except OSError as error:
            raise BrokenFile.of(attempt.metrics, error) from None
        kept = metrics_file.last_kept_step(log.restored_step, min(own, default=None))
        if kept is not None:
            steps = {step: values for step, values in steps.items() if step <= kept}
        for step, values in own.items():
            steps.setdefault(step, {}).update(values)
    ordered = {step: steps[step] for step in sorted(steps)}
    return Curve(ordered, newest, {step: times[step] for step in ordered if step in times})


def read_recorded(attempts: Sequence[Attempt]) -> Latest | None:
    """Return the progress that the ledger records with the last attempt's end.

    None without, and where that attempt logged no metric but earlier ones may have.
    """
    ended = attempts[-1].end
    if not ended.get("metrics") and (len(attempts) > 1 or "logged" not in ended):
        return None
    return Latest(
        step=ended.get("reached_step"),
        total_steps=ended.get("total_steps"),
        values=ended.get("metrics") or {},
        time=ended.get("logged"),
    )


def latest(run: RunPaths, attempts: Iterable[int], *, patience: int = PATIENCE) -> Latest:
    """Read the newest step and values, from the last few KiB of the newest attempts' files.

    ``attempts`` are the numbers of those that exist, ascending. In each file, stop after
    ``patience`` lines in a row without a new metric. Raises BrokenFile if one cannot be read.
    """
    limit: int | None = None
    total: int | None = None
    unit: str | None = None
    fallback: int | None = None
    alive: float | None = None
    for number in reversed(list(attempts)):
        attempt = run.attempt(number)
        log = session_log.read(attempt)
        unit = unit or log.unit
        if log.unit not in (None, unit):
            continue
        from_step = log.restored_step
        total = log.total_steps if total is None else total
        found = _newest(attempt.metrics, limit, patience)
        if from_step is None and fallback is None:
            found = _with_signs(found, attempt, log)
        alive = alive or found.time
        if found.step is not None:
            step = found.step if fallback is None else fallback
            return replace(found, step=step, total_steps=total, time=alive)
        if from_step is not None:
            limit = from_step if limit is None else min(limit, from_step)
            fallback = from_step if fallback is None else fallback
            if from_step == 0:
                break
    return Latest(fallback, total, time=alive)


def _with_signs(found: Latest, attempt: AttemptPaths, log: SessionLog) -> Latest:
    """Add what a script or command needs: its signs of life, and the pace of timeless lines."""
    sightings = log.sightings
    pace = found.seconds_per_step
    if pace is None and sightings:
        steps, times = zip(sightings[0], sightings[-1], strict=True)
        pace = _slope(steps, times)
    sizes = files.last_line(attempt.log_sizes) or {}
    signs = [found.time, *log.times, sizes["time"] if TIME.accepts(sizes.get("time")) else None]
    time = max((sign for sign in signs if sign), default=None)
    return replace(found, seconds_per_step=pace, time=time)


def _newest(path: Path, limit: int | None, patience: int) -> Latest:
    """Read backwards from step ``limit`` while lines name new metrics.

    The pace is the average since the first line in the same few KiB.
    """
    values: dict[str, float] = {}
    last: metrics_file.Line | None = None
    idle = 0
    try:
        lines = files.read_tail(path, TAIL_BYTES).split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return Latest()
    except OSError as error:
        raise BrokenFile.of(path, error) from None
    for line in metrics_file.parse(files.objects(reversed(lines))):
        step, _, named = line
        if limit is not None and step > limit:
            continue
        # Lines of a program's several files may be out of order.
        last = line if last is None or step > last.step else last
        known = len(values)
        values = {**named, **values}
        idle = 0 if len(values) > known else idle + 1
        if idle >= patience:
            break
    if last is None:
        return Latest()
    first = next(metrics_file.parse(files.objects(lines)), last)
    pace, rate = _finite(values.get("step_seconds")), _finite(values.get("tokens_per_second"))
    if first.time is not None and last.time is not None:
        times = (first.time, last.time)
        pace = _slope((first.step, last.step), times) or pace
        if rate is None and "tokens" in first.values and "tokens" in last.values:
            rate = _slope(times, (first.values["tokens"], last.values["tokens"]))
    return Latest(last.step, None, values, last.time, pace, rate)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _slope(x: tuple[float, float], y: tuple[float, float]) -> float | None:
    """Return the slope of a rising line; None for any other."""
    rises = x[1] > x[0] and y[1] > y[0]
    return _finite((y[1] - y[0]) / (x[1] - x[0])) if rises else None


def rounded(value: float, digits: int = DIGITS) -> float:
    """Round to so many significant digits."""
    return float(f"{value:.{digits}g}")


def differences(numbers: Sequence[float]) -> list[float]:
    """Return the first number, then the difference of each to the one before."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]
