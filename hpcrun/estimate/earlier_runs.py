"""What earlier runs under the root measured of the same training: its speed and its saves."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.policy import stop_lead_time
from hpcrun.state import files, history, manifest, metrics_file
from hpcrun.state.layout import ExperimentPaths, RunPaths, experiment, experiments
from hpcrun.state.metrics_file import Line
from hpcrun.state.plan import RunPlan

# Lines of metrics, the newest, of which the median is taken; a run's first steps are slow.
_LINES, _LEAST = 200, 3
_MOST_EXPERIMENTS, _MOST_RUNS = 20, 50


@dataclass(frozen=True)
class Measured:
    """The measurements of one run."""

    run: str
    """``NAME/3``."""
    plan: RunPlan
    step_seconds: float | None
    tokens_per_second: float | None
    save_seconds: float | None
    """Its longest save."""
    checkpoint_bytes: int | None
    last_step: int | None


def find(root: Path, name: str, suits: Callable[[RunPlan], bool]) -> Iterator[Measured]:
    """Yield the measurements of runs that suit: of this experiment first, the newest runs first.

    Runs that measured nothing are left out.
    """
    own = experiment(root, name)
    others = [one for one in experiments(root) if one.name != name]
    others.sort(key=_age)
    for paths in [own, *others[:_MOST_EXPERIMENTS]]:
        try:
            known = history.read(paths).runs
        except (UsageError, OSError):
            continue
        newest = sorted(known, reverse=True)[:_MOST_RUNS]
        for number in newest:
            plan = known[number][1]
            if suits(plan):
                found = measure(paths, plan)
                if found.step_seconds is not None or found.save_seconds is not None:
                    yield found


def _age(paths: ExperimentPaths) -> float:
    try:
        return -paths.directory.stat().st_mtime
    except OSError:
        return 0.0


def measure(paths: ExperimentPaths, plan: RunPlan) -> Measured:
    """Return what one run measured of itself."""
    run = paths.run(plan.number)
    lines: list[Line] = []
    for attempt in reversed(run.attempts()):
        lines = _newest_lines(attempt.metrics)
        if len(lines) >= _LEAST:
            break
    save, _ = stop_lead_time.measured(run)
    return Measured(
        f"{paths.name}/{plan.number}",
        plan,
        step_seconds=_step_seconds(lines),
        tokens_per_second=_median(lines, "tokens_per_second"),
        save_seconds=save,
        checkpoint_bytes=_checkpoint_bytes(run),
        last_step=max((line.step for line in lines), default=None),
    )


def _newest_lines(path: Path) -> list[Line]:
    return [*metrics_file.parse(itertools.islice(files.read_back(path), _LINES))]


def _median(lines: list[Line], name: str) -> float | None:
    found = [line.values[name] for line in lines if 0 < line.values.get(name, 0) < 1e15]
    return statistics.median(found) if len(found) >= _LEAST else None


def _step_seconds(lines: list[Line]) -> float | None:
    """Return the median of the steps' own times, else the time between the lines of a script."""
    if (own := _median(lines, "step_seconds")) is not None:
        return own
    timed = [(line.step, line.time) for line in lines if line.time is not None]
    if len(timed) < _LEAST:
        return None
    (last, end), (first, begin) = max(timed), min(timed)
    return (end - begin) / (last - first) if last > first and end > begin else None


def _checkpoint_bytes(run: RunPaths) -> int | None:
    for _, newest in manifest.complete(run.checkpoints)[:1]:
        return newest.bytes
    return None
