"""The trend of a metric of each run, read incrementally."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcrun.state import files, metrics_file
from hpcrun.state.layout import RunPaths

# Bytes at the end of a long file.
FIRST_LOOK = 1 << 18
MOST_POINTS = 2048


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
        if len(trend.points) > MOST_POINTS:
            del trend.points[::2]
        return [value for _, value in trend.points]

    def _read(self, trend: _Trend, path: Path, metric: str) -> list[tuple[int, float]]:
        try:
            start = max(trend.offset, path.stat().st_size - FIRST_LOOK)
            found, trend.offset = files.read_on(path, start)
        except OSError:
            return []
        lines = metrics_file.parse(found)
        return [(line.step, line.values[metric]) for line in lines if metric in line.values]
