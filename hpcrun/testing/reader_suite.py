"""What is expected of a progress reader: see `hpcrun.run.program.progress_source`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.extensions import READERS
from hpcrun.run.program.file_search import FoundFile, found_at
from hpcrun.run.program.progress_source import (
    BAR,
    EPOCHS,
    LINES,
    STEPS,
    Found,
    Look,
    ProgressSource,
    ReaderStart,
)
from hpcrun.state.metrics_file import RESERVED, Line
from hpcrun.testing.expectation import expect, expect_attributes, expect_call, expecting, name_of

_BEGAN = 1_700_000_000.0
# Seconds from one look to the next.
_EVERY = 30.0


def check_progress_reader(
    reader: Any,
    steps: Sequence[int],
    *,
    text: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Check that a class reads the steps of a program.

    Parameters
    ----------
    steps
        Those that the program shows, in order.
    text
        The lines that its rank 0 prints; each update of a progress bar is one.
    files
        What it writes, by the paths relative to where it runs.
    """
    expect_attributes(reader, READERS.needs)
    expect_call(reader.begin, 1, f"{name_of(reader)}.begin(start)")
    with tempfile.TemporaryDirectory() as directory:
        trial = _ReaderTrial(reader, Path(directory), text, files or {})
        trial.run(list(steps))


class _ReaderTrial:
    """Attempts of one program, as they are read."""

    def __init__(
        self, reader: Any, directory: Path, text: Sequence[str], files: Mapping[str, bytes]
    ) -> None:
        self._reader, self._directory = reader, directory
        self._text, self._files = tuple(text), files

    def run(self, steps: list[int]) -> None:
        """Read nothing, all at once, line by line, and what was there before."""
        idle = self._begin(())
        for look in (Look(_BEGAN, _BEGAN), Look(_BEGAN + 1, _BEGAN, is_last=True)):
            found = self._poll(idle, look)
            expect(not found.lines, f"{found.lines} is found where the program shows nothing")
        self._expect(self._read(self._begin(()), [self._text]), steps, "at once")
        self._expect(self._read(self._begin(()), [(one,) for one in self._text]), steps, "by line")
        if self._files:
            lines = self._read(self._begin(self._there()), [()])
            expect(not lines, f"{lines} is found in files that were there before the program began")

    def _there(self) -> tuple[FoundFile, ...]:
        for name, content in self._files.items():
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return tuple(found_at(self._directory / name) for name in self._files)

    def _begin(self, there: tuple[FoundFile, ...]) -> ProgressSource:
        with expecting(f"{name_of(self._reader)}.begin(start)"):
            begun = self._reader.begin(ReaderStart(there))
        expect(hasattr(begun, "poll"), f"begin returns {begun!r}, which has no poll")
        source: ProgressSource = begun
        return source

    def _read(self, source: ProgressSource, texts: Sequence[tuple[str, ...]]) -> list[Line]:
        """Return the lines of an attempt whose texts come one after the other, then the files."""
        lines: list[Line] = []
        now = _BEGAN
        for text in texts:
            now += _EVERY
            lines += self._poll(source, Look(now, now - _EVERY, text)).lines
        files = self._there()
        for is_last in (False, True):
            now += _EVERY
            look = Look(now, now - _EVERY, (), files, is_last)
            lines += self._poll(source, look).lines
        return lines

    def _poll(self, source: ProgressSource, look: Look) -> Found:
        with expecting(f"poll({look})"):
            found = source.poll(look)
        expect(isinstance(found, Found), f"poll returns {found!r}; expected is a Found")
        is_unit = found.unit in (STEPS, EPOCHS, LINES) or found.unit.startswith(BAR)
        expect(is_unit, f"unit is {found.unit!r}; known are {STEPS}, {EPOCHS}, {LINES} and {BAR} …")
        for line in found.lines:
            _check_line(line)
        return found

    def _expect(self, lines: list[Line], steps: list[int], how: str) -> None:
        found = list(dict.fromkeys(line.step for line in lines))
        expect(found == steps, f"the steps {found} are found {how}; the program shows {steps}")


def _check_line(line: Line) -> None:
    is_step = type(line.step) is int and line.step >= 0
    expect(is_step, f"{line} has the step {line.step!r}; expected is a whole number")
    expect(
        line.time is None or (isinstance(line.time, float) and math.isfinite(line.time)),
        f"{line} has the time {line.time!r}; expected are seconds since the epoch, or None",
    )
    wrong = [
        name
        for name, value in line.values.items()
        if name in RESERVED or not isinstance(value, (int, float)) or isinstance(value, bool)
    ]
    expect(not wrong, f"{line} has {wrong}; expected are names of metrics, and numbers")
