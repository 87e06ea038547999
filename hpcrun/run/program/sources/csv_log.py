"""Lightning's ``metrics.csv``: columns ``step`` and ``epoch``, and one for each metric."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable
from pathlib import Path

from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import (
    MOST_BYTES,
    Found,
    Look,
    ReaderStart,
    name_values,
    number,
    spread,
)
from hpcrun.run.program.sources.progress_bars import BAR_WAITS, ProgressBars
from hpcrun.state import files
from hpcrun.state.metrics_file import Line

NAME = "metrics.csv"
_MOST_COLUMNS = 500


class CsvFile:
    """One file. A new column makes Lightning write it anew; rows that were read are not again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The rows that were read of it, however often it was written.
        self._lines = 0
        self._names: list[str] = []
        # The bytes of the whole rows that were read, and the file that they are of.
        self._offset, self._number = 0, 0
        # Rows before that place.
        self._at = 0

    def read(self, most: int = MOST_BYTES) -> tuple[list[tuple[int, dict[str, float]]], bool]:
        """Return steps and values of new rows, and whether there may be more.

        Raises OSError if the file cannot be read.
        """
        with files.open_stream(self._path) as stream:
            descriptor = stream.fileno()
            facts = os.fstat(descriptor)
            number, size = facts.st_ino, facts.st_size
            head = os.pread(descriptor, most, 0).partition(b"\n")
            names = _cells(head[0]) if head[1] else []
            if names != self._names or number != self._number or size < self._offset:
                is_other = names == self._names and number != self._number
                if is_other or size < self._offset:
                    self._lines = 0
                self._names, self._number, self._at = names, number, 0
                self._offset = len(head[0]) + 1 if head[1] else 0
            data = os.pread(descriptor, most, self._offset) if self._names else b""
        end = data.rfind(b"\n") + 1
        self._offset += end
        found = []
        for row in data[:end].split(b"\n")[:-1]:
            self._at += 1
            if self._at > self._lines and (line := self._line(row)) is not None:
                found.append(line)
        self._lines = max(self._lines, self._at)
        return found, len(data) == most and bool(end)

    def _line(self, row: bytes) -> tuple[int, dict[str, float]] | None:
        pairs = list(zip(self._names, _cells(row), strict=False))
        values = {name: value for name, cell in pairs if (value := number(cell)) is not None}
        step = values.pop("step", None)
        if step is None or not step.is_integer() or abs(step) >= 1 << 53 or not values:
            return None
        return int(step), name_values(values.items())


def _cells(row: bytes) -> list[str]:
    """Return the cells of a row; none if it is none."""
    try:
        text = row.decode(errors="replace").rstrip("\r").replace("\0", "")
        return next(csv.reader([text]), [])[:_MOST_COLUMNS]
    except csv.Error:
        return []


class LightningCsv:
    """The files that Lightning's CSVLogger writes, many rows at once.

    Rows have no time: those that came together are spread over the time since those before, and the
    first ones over the time since the progress bar began, or without one since the last look. Where
    the bar counts the steps that the rows count, its updates are lines too, numbered as the rows
    are: a program may write one row an epoch. Rows of files that were ``there`` before are not new.
    """

    def __init__(self, there: Iterable[FoundFile] = ()) -> None:
        self._files: dict[Path, CsvFile] = {}
        self._seen: dict[Path, FoundFile] = {}
        # Lightning's epochs begin with 0.
        self._bars = ProgressBars(first_epoch=0)
        # The bar's steps are the rows': with accumulated gradients they are not.
        self._agrees = False
        self._last: tuple[int, float] | None = None
        # When the files were looked for before: Lightning writes each row as it is logged.
        self._searched: float | None = None
        for one in there:
            if one.path.name == NAME:
                self._files[one.path] = known = CsvFile(one.path)
                self._seen[one.path] = one
                with contextlib.suppress(OSError):
                    while known.read()[1]:
                        pass  # what is there already

    @classmethod
    def begin(cls, start: ReaderStart) -> LightningCsv:
        """Return a reader of one attempt."""
        return cls(start.there)

    def poll(self, look: Look) -> Found:
        """Return the new rows of all files."""
        found = Found()
        self._bars.read(look)
        settled = self._bars.settles(look)
        for one in look.files or ():
            if one.path.name != NAME or self._seen.get(one.path) == one:
                continue
            file = self._files.setdefault(one.path, CsvFile(one.path))
            rows, is_more = file.read()
            if not is_more:
                self._seen[one.path] = one
            found.is_more |= is_more
            if rows:
                found.path = one.path
                found.lines += self._with_times(rows, min(one.modified, look.time))
        if look.files is not None:
            self._searched = look.time
        waits = self._last is not None and look.time - self._last[1] >= BAR_WAITS
        if self._agrees and (look.is_last or waits):
            found.lines += self._updates()
        elif settled and not self._agrees:
            # Until there are rows, the bars are a source of their own.
            self._bars.waiting = []
        found.total = self._bars.total
        return found

    def _with_times(self, rows: list[tuple[int, dict[str, float]]], written: float) -> list[Line]:
        own = self._bars.main.own_total if self._bars.main else 0
        ends = ((step + 1, own * (values.get("epoch", -1.0) + 1)) for step, values in rows)
        self._agrees |= any(steps == end for steps, end in ends)
        known = self._bars.since or self._searched or written
        before, since = self._last or (0, min(known, written))
        updates = self._updates() if self._agrees else []
        end = Line(max(before, *(step for step, _ in rows)), max(since, written), {})
        found: list[Line] = []
        for update in [*updates, end]:
            moment = max(since, update.time or 0.0)
            found += spread([row for row in rows if row[0] <= update.step], before, since, moment)
            rows = [row for row in rows if row[0] > update.step]
            if update is not end and (not found or found[-1].step != update.step):
                found.append(update)
            before, since = max(before, update.step), moment
        self._last = before, since
        return found

    def _updates(self) -> list[Line]:
        """Return what the bar showed since the last rows, by the rows' numbers: from 0."""
        waiting, self._bars.waiting = self._bars.waiting, []
        done = self._last[0] if self._last else -1
        found = [line._replace(step=line.step - 1) for line in waiting if line.step - 1 > done]
        if found:
            self._last = found[-1].step, found[-1].time or 0.0
        return found
