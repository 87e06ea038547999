"""The steps and times of a program by its own log, read apart from hpcrun's reader."""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Behind a bar too, which ends no line.
_FAILURE = re.compile(r"Traceback \(most recent|Error\b|(slurmstepd|srun)\S*: |terminate called\b")
# Colours, and what takes a bar back.
_DRAWING = re.compile(r"\x1b\[[\d;]*m|\x08")


@dataclass(frozen=True)
class LoggedLine:
    """One line of rank 0, with the time at which the file had it."""

    attempt: int
    time: float
    text: str


@dataclass
class LoggedAttempt:
    """The steps that one attempt logged, with their times; and those of its first and last line."""

    number: int
    begin: float
    steps: list[tuple[int, float]] = field(default_factory=list)
    end: float = 0.0
    failed: bool = False
    """It has printed of an error since its first step."""
    lengths: dict[int, float] = field(default_factory=dict)
    """The seconds of each step, where the program prints them itself."""

    @property
    def first(self) -> int | None:
        return self.steps[0][0] if self.steps else None

    @property
    def last(self) -> int | None:
        return self.steps[-1][0] if self.steps else None


def attempts(
    lines: Iterable[LoggedLine], pattern: str, done: Mapping[int, int] | None = None
) -> list[LoggedAttempt]:
    """Find the steps in lines by a regular expression.

    Its groups: ``step`` (in an epoch where ``epoch`` and ``epoch_total`` are there), else each line
    is one more, after the steps that an attempt found ``done``; ``milliseconds`` for the step's own
    time. A line that matches with ``epoch`` alone names the epoch of those after it, from 1.
    """
    epochs: dict[int, int] = {}
    found: dict[int, LoggedAttempt] = {}
    for line in lines:
        one = found.setdefault(line.attempt, LoggedAttempt(line.attempt, line.time))
        # What is printed of its end came when it was noticed: the steps were over before.
        one.failed |= bool(one.steps and _FAILURE.search(line.text))
        one.end = one.end if one.failed else max(one.end, line.time)
        match = re.search(pattern, _DRAWING.sub("", line.text))
        if match is None:
            continue
        known = {name: value for name, value in match.groupdict().items() if value is not None}
        if known.keys() == {"epoch"}:
            epochs[line.attempt] = int(known["epoch"]) - 1
            continue
        if "step" in known:
            epoch = int(known.get("epoch", epochs.get(line.attempt, 0)))
            step = int(known["step"]) + epoch * int(known.get("epoch_total", 0))
        else:
            step = ((done or {}).get(line.attempt, 0) if one.last is None else one.last) + 1
        one.steps.append((step, line.time))
        if "milliseconds" in known:
            one.lengths[step] = float(known["milliseconds"]) / 1000
    return sorted(found.values(), key=lambda one: one.number)


def useful_seconds(told: Sequence[LoggedAttempt]) -> float:
    """Return the time of steps done for the first time, with what the program did between them.

    The first step of an attempt is taken to be as long as its others; an attempt lasts until its
    last line.
    """
    total, furthest = 0.0, -1
    for one in told:
        if not one.steps:
            continue
        paces = [
            (after[1] - before[1]) / (after[0] - before[0])
            for before, after in itertools.pairwise(one.steps)
            if after[0] > before[0]
        ]
        begun = one.steps[0][1] - (statistics.median(paces) if paces else 0.0)
        again = [moment for step, moment in one.steps if step <= furthest]
        total += max(0.0, one.end - max([begun, *again]))
        furthest = max(furthest, one.last or 0)
    return total


def printed_seconds(told: Sequence[LoggedAttempt]) -> float | None:
    """Sum the times that a program printed of steps done for the first time; None of none."""
    lengths: dict[int, float] = {}
    for one in told:
        lengths = {**one.lengths, **lengths}
    return sum(lengths.values()) if lengths else None


class LogWatch:
    """Watches the logs of rank 0 of a run, and its saves, from outside; a thread until `stop`.

    ``logs`` returns the log of each attempt, ``saves`` the files whose appearance is a save.
    """

    def __init__(
        self, logs: Callable[[], dict[int, Path]], saves: Callable[[], Iterable[Path]]
    ) -> None:
        self.lines: list[LoggedLine] = []
        self.saved: list[float] = []
        """The times of the saves."""
        self._logs, self._saves = logs, saves
        self._offsets: dict[Path, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(0.05):
            self._look()
        self._look()

    def _look(self) -> None:
        for attempt, path in self._logs().items():
            self._read(attempt, path)
        # Directories come and go meanwhile: the links to the code, as an attempt ends.
        with contextlib.suppress(OSError):
            for path in self._saves():
                moment = path.stat().st_mtime
                if moment not in self.saved:
                    self.saved.append(moment)

    def _read(self, attempt: int, path: Path) -> None:
        try:
            with path.open("rb") as stream:
                stream.seek(offset := self._offsets.get(path, 0))
                data = stream.read()
            moment = min(time.time(), path.stat().st_mtime)
        except OSError:
            return
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._offsets[path] = offset + whole
        for text in re.split(rb"[\r\n]+", data[:whole]):
            if text:
                self.lines.append(LoggedLine(attempt, moment, text.decode(errors="replace")))
