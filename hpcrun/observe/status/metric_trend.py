"""The course of one metric of each run, read further as its file grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcrun.state import files, metrics_file
from hpcrun.state.layout import RunPaths

# Of a long file, its end.
FIRST_LOOK = 1 << 18
MOST_POINTS = 2048


@dataclass
class _Course:
    path: Path | None = None
    offset: int = 0
    points: list[tuple[int, float]] = field(default_factory=list)


class Trends:
    """Values of a metric by run; each look costs what was written since the one before."""

    def __init__(self) -> None:
        self._courses: dict[tuple[Path, str], _Course] = {}

    def values(self, run: RunPaths, attempt: int, metric: str) -> list[float]:
        """The values so far, in the order of steps; a replayed step replaces what it was."""
        course = self._courses.setdefault((run.directory, metric), _Course())
        path = run.attempt(attempt).metrics
        if path != course.path:
            course.path, course.offset = path, 0
        for step, value in self._read(course, path, metric):
            while course.points and course.points[-1][0] >= step:
                course.points.pop()
            course.points.append((step, value))
        if len(course.points) > MOST_POINTS:
            del course.points[::2]
        return [value for _, value in course.points]

    def _read(self, course: _Course, path: Path, metric: str) -> list[tuple[int, float]]:
        try:
            start = max(course.offset, path.stat().st_size - FIRST_LOOK)
            found, course.offset = files.read_on(path, start)
        except OSError:
            return []
        lines = metrics_file.parse(found)
        return [(line.step, line.values[metric]) for line in lines if metric in line.values]
