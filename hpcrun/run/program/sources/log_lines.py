"""Progress in what rank 0 prints, by a pattern of the user's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hpcrun.run.program.progress_source import (
    EPOCHS,
    LINES,
    MOST_BYTES,
    MOST_LINE,
    STEPS,
    EpochNumbers,
    Found,
    Look,
    StepNumbers,
    name_values,
    number,
    plain,
)
from hpcrun.run.program.sources.pattern_search import PatternSearch
from hpcrun.state import files
from hpcrun.state.metrics_file import Line


class NewText:
    """The lines that are added to a log; each update of a progress bar is one.

    Of more than can be read at once, the beginning is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified = 0.0
        """When the last of the text was written, in seconds since the epoch."""
        self._offset = 0
        self._held = b""

    def read(self, is_last: bool = False) -> tuple[str, ...]:
        """Return the new whole lines, at last the rest too; none if the log cannot be read."""
        try:
            with files.open_stream(self.path) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size - self._offset > _MOST_BEHIND:
                    self._offset, self._held = size - MOST_BYTES, b""
                data = os.pread(stream.fileno(), MOST_BYTES, self._offset)
                self.modified = os.fstat(stream.fileno()).st_mtime
        except OSError:
            return ()
        self._offset += len(data)
        *lines, self._held = _ENDS.split(self._held[-4 * MOST_LINE :] + data)
        if is_last and not data:
            lines, self._held = [self._held], b""
        return tuple(line[-4 * MOST_LINE :].decode(errors="replace") for line in lines if line)


_ENDS = re.compile(rb"[\r\n]+")
_MOST_BEHIND = 1 << 24


class LogPattern:
    """Lines that a regular expression finds.

    Its group ``step`` is the step, ``total`` the number of all; the others are metrics. Where
    ``epoch`` and ``epoch_total`` (its steps) are among them, the step is that of an epoch, and
    ``epochs`` is the number of all epochs. With ``epoch`` and without ``step``, epochs are the
    steps. With the group ``one_step`` each line is a step, counted from what ``done`` returns at
    the first. ``first_epoch`` is the number of the run's first epoch; None if it is not known.
    """

    def __init__(
        self, pattern: str, done: Callable[[], int] = int, first_epoch: int | None = None
    ) -> None:
        self._search = PatternSearch(pattern)
        self._done = done
        self._counted: int | None = None
        self._epochs, self._steps = EpochNumbers(first_epoch), StepNumbers()
        names = re.compile(pattern).groupindex
        self._unit = STEPS if "step" in names else LINES if "one_step" in names else EPOCHS

    def close(self) -> None:
        """End what searches for the pattern."""
        self._search.close()

    def poll(self, look: Look) -> Found:
        """Return a line for each match with a step, at even distances since the last look."""
        found = Found(unit=self._unit)
        steps: list[tuple[int, dict[str, float]]] = []
        before = self._search.problem
        texts = [plain(text[:MOST_LINE]) for text in look.text]
        for groups in filter(None, self._search.search(texts)):
            if (line := self._line(groups, found)) is not None:
                steps.append(line)
        for at, (step, own) in enumerate(steps, 1):
            time = look.since + at / len(steps) * (look.time - look.since)
            found.lines.append(Line(step, time, own))
        found.problem = None if before else self._search.problem
        found.is_endless = self._steps.begins_again and found.total is None
        found.first_epoch = self._epochs.first
        return found

    def _line(
        self, groups: dict[str, str | None], found: Found
    ) -> tuple[int, dict[str, float]] | None:
        """Return step and metrics of a match, and note how many steps there will be."""
        is_one = groups.pop("one_step", None) is not None
        values = {
            name: value
            for name, group in groups.items()
            if group is not None and (value := number(group)) is not None
        }
        total, in_epoch = (_whole(values.pop(name, None)) for name in ("total", "epoch_total"))
        step, epochs = (_whole(values.pop(name, None)) for name in ("step", "epochs"))
        epoch = values.get("epoch")
        if is_one:
            self._counted = (self._done() if self._counted is None else self._counted) + 1
            step = self._counted
        elif self._unit == EPOCHS:
            total = epochs or total
            step = None if epoch is None else self._count_ended(epoch, total)
        elif step is not None and in_epoch and (number_of := _whole(epoch)) is not None:
            step += in_epoch * self._epochs.before(number_of, epochs)
            total = total or (epochs and epochs * in_epoch)
        elif step is not None:
            step = self._steps.counted(step, total, _whole(epoch))
            if self._steps.begins_again:
                # It was the end of an epoch.
                total = found.total = total and epochs and epochs * total
        found.total = total or found.total
        return None if step is None else (step, name_values(values.items()))

    def _count_ended(self, epoch: float, epochs: int | None) -> int | None:
        """Return how many epochs have ended, once one prints its number or a part of it."""
        whole = _whole(epoch)
        if whole is None or whole == epoch:
            return None if whole is None else self._epochs.before(whole, epochs) + 1
        self._epochs.first = 1
        return whole


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == value and abs(value) < 1e15 else None
