"""The steps and scalars of TensorBoard's event files that a program writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import MOST_BYTES, Found, Look, ReaderStart, named
from hpcrun.run.program.sources.event_file import EventFile
from hpcrun.state.metrics_file import Line

PREFIX = "events.out.tfevents."
# Those of hpcrun's own tracker, which are made of the lines that this reads.
_OWN = ".hpcrun"
_MOST_FILES = 50
# What DeepSpeed's own monitor writes, by the number of samples in place of steps.
_BY_SAMPLES = "Train/Samples/"
# What Lightning's logger writes as it starts, and as it resumes.
_PLACEHOLDER = 0, {"hp_metric": -1.0}


def is_event_file(path: Path) -> bool:
    """Check whether a path has the name of a program's event file."""
    return path.name.startswith(PREFIX) and not path.name.endswith(_OWN)


class TensorBoardEvents:
    """All event files of a program. What was ``there`` before is not new.

    A tag that several directories use gets the name of its directory in all but the first of them
    (``validation/loss``). Values at another scale of steps, as epochs, belong to the last step.
    Samples are counted in steps of ``batch``; without it, of what the first two counts differ by.
    """

    def __init__(self, there: Iterable[FoundFile] = (), batch: int | None = None) -> None:
        self._batch, self._samples = batch, -1
        self._files: dict[Path, EventFile] = {}
        self._sizes: dict[Path, int] = {}
        # Tag -> the directory that used it first.
        self._owners: dict[str, Path] = {}
        # The line with the largest step so far.
        self._last = 0, 0.0
        for one in there:
            if is_event_file(one.path):
                self._files[one.path] = EventFile(one.path, one.size)
                self._sizes[one.path] = one.size

    @classmethod
    def begin(cls, start: ReaderStart) -> TensorBoardEvents:
        """Return a reader of one attempt."""
        return cls(start.there, start.batch)

    def poll(self, look: Look) -> Found:
        """Return the new events in the order of their times."""
        found = Found()
        events: list[Line] = []
        for one in look.files or ():
            path = one.path
            if not is_event_file(path) or self._sizes.get(path) == one.size:
                continue
            if path not in self._files and len(self._files) >= _MOST_FILES:
                continue
            file = self._files.setdefault(path, EventFile(path))
            before, new = file.offset, file.read(MOST_BYTES)
            # There may be more behind what has no numbers, as pictures.
            goes_on = file.offset > before
            self._sizes[path] = file.offset if goes_on else one.size
            found.is_more |= goes_on and file.offset < one.size
            for step, time, values in new:
                if any(tag.startswith(_BY_SAMPLES) for tag in values):
                    step = self._in_steps(step)
                if step >= 0 and (step, values) != _PLACEHOLDER:
                    events.append(Line(step, time or look.time, self._named(path.parent, values)))
            found.path = path if new else found.path
        events.sort(key=lambda line: line.time or 0.0)
        found.lines = [self._at_scale(line) for line in events]
        return found

    def _in_steps(self, samples: int) -> int:
        """Return the step of a number of samples; -1 for the first, if the batch is not known."""
        if self._batch is None and 0 <= self._samples < samples:
            self._batch = samples - self._samples
        self._samples = samples
        return samples // self._batch if self._batch else -1

    def _named(self, directory: Path, values: dict[str, float]) -> dict[str, float]:
        own = {tag: self._owners.setdefault(tag, directory) == directory for tag in values}
        return named(
            (tag if own[tag] else f"{directory.name}/{tag}", value) for tag, value in values.items()
        )

    def _at_scale(self, line: Line) -> Line:
        step, time = self._last
        if line.step >= step:
            self._last = line.step, line.time or time
            return line
        # Older lines of another file may be read later.
        return line if (line.time or 0.0) < time else line._replace(step=step)
