"""What the readers of a program's traces have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcrun.run.program.file_search import FoundFile
from hpcrun.state.metrics_file import RESERVED, Line

# Bytes of one file that one look takes in, and names of metrics in one line.
MOST_BYTES = 1 << 20
MOST_NAMES = 100
_MOST_NAME = 100
# Characters of a line that are looked at.
MOST_LINE = 1_000
_CONTROL = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|\x08+")
# Units that steps have: see `Found.unit`.
STEPS, EPOCHS, LINES, BAR = "steps", "epochs", "lines", "bar of"


@dataclass(frozen=True)
class Look:
    """What there is to be read now."""

    time: float
    """Seconds since the epoch; where there is new text, when the last of it was written."""
    since: float
    """The time of the look before."""
    text: tuple[str, ...] = ()
    """New lines of rank 0's log; each update of a progress bar is one."""
    files: tuple[FoundFile, ...] | None = None
    """The files of the program; None if they were not looked for now."""
    is_last: bool = False
    """The ranks have ended."""


@dataclass
class Found:
    """What a source found."""

    lines: list[Line] = field(default_factory=list)
    total: int | None = None
    """How many steps there will be."""
    is_endless: bool = False
    """That is not known, whatever was said before."""
    unit: str = STEPS
    """What is counted: `STEPS`, `EPOCHS`, `LINES`, or what a `BAR` does (with more)."""
    first: int | None = None
    """The first step that was shown; None for that of the first line."""
    first_epoch: int | None = None
    """The number that the program gives its first epoch, 0 or 1; None if it is not known."""
    path: Path | None = None
    """The file that it is read from; None for rank 0's log."""
    is_more: bool = False
    """There is more to be read at once."""
    problem: str | None = None
    """Why nothing more is read of it, told once."""


@dataclass(frozen=True)
class ReaderStart:
    """What is known of a program as an attempt of it begins."""

    there: tuple[FoundFile, ...] = ()
    """The files that it has already, which are of earlier attempts."""
    batch: int | None = None
    """Samples of a step; None where the spec does not say."""
    first_epoch: int | None = None
    """The number of its first epoch, as an earlier attempt showed it: see `Found.first_epoch`."""


class ProgressSource(Protocol):
    """A source of progress."""

    def poll(self, look: Look) -> Found:
        """Return what is new. May raise OSError."""


class ProgressReader(ProgressSource, Protocol):
    """A source that a spec or a framework names: by ``progress.source``, or by itself."""

    @classmethod
    def begin(cls, start: ReaderStart) -> ProgressSource:
        """Return a reader of one attempt."""


@dataclass(frozen=True)
class EarlierProgress:
    """What the attempts before showed of a run's steps; None where it is not known."""

    source: str | None = None
    unit: str | None = None
    total: int | None = None
    first_epoch: int | None = None
    first: int = 0
    """The least step with which one of those that count in this unit began."""
    reached: int = 0
    """The furthest of their steps."""


class OneUnit:
    """The steps of an attempt, in the unit in which the first ones of its run were counted.

    A source that comes later and is a better one (``source`` is the best so far) has steps of its
    own if they are the same; else its values belong to the step that was known at their time.
    """

    def __init__(self, earlier: EarlierProgress) -> None:
        self.earlier = earlier
        self.source: str | None = None
        """Where steps come from; None before the first one."""
        self.unit: str | None = None
        """What they are; see `Found.unit`."""
        self.reached: int | None = None
        """The furthest step."""
        self.done = 0
        """Steps that were done before the first that the source counts, and its total too."""
        # The first time and step, and those from the last one before the last `forget`.
        self._start: tuple[float, int] | None = None
        self._passed: list[tuple[float, int]] = []
        # Sources that count something else.
        self._others: set[str] = set()

    def taken(self, name: str, found: Found, now: float) -> list[Line]:
        """Return the lines of the source ``name`` in this unit."""
        lines, earlier = found.lines, self.earlier
        if self.source is None:
            self.source, self.unit = name, found.unit
            self.done = self._left_out(found)
            # A better source counted what a bar had before it.
            is_later = name == earlier.source and found.unit == STEPS
            if self.done or (is_later and (earlier.unit or "").startswith(BAR)):
                self.unit = earlier.unit
        if name == self.source:
            return [line._replace(step=line.step + self.done) for line in lines]
        # Of few steps nobody can tell yet.
        if name not in self._others and (self.reached or 0) >= _TELLING:
            if self._is_alike(lines, now):
                self.source, self.done = name, 0
                return lines
            self._others.add(name)
        return [line._replace(step=self.at(line.time or now) or 0) for line in lines]

    def note(self, lines: Iterable[Line], moment: float) -> None:
        """Note the steps of new lines; ``moment`` is the time of those that have none."""
        for line in lines:
            self.reached = max(self.reached or 0, line.step)
            self._passed.append((line.time or moment, self.reached))
            self._start = self._start or self._passed[-1]

    def forget(self) -> None:
        """Forget the times of all steps but the last: files are looked for now."""
        self._passed = self._passed[-1:]

    def at(self, moment: float) -> int | None:
        """Return the last step of a time that is not before that which was forgotten.

        What is printed beside a save arrives a little later: up to half a step is allowed for that.
        """
        if not self._passed:
            return self.reached
        (began, first), (ended, last) = self._passed[0], self._passed[-1]
        late = min(_LATE, (ended - began) / max(last - first, 1) / 2)
        return max((step for at, step in self._passed if at <= moment + late), default=first)

    def _left_out(self, found: Found) -> int:
        """Return the steps that come before the first of an attempt.

        A program that goes on may count what is left, from the beginning: ``1/60`` where the first
        attempt had shown ``1/100``.
        """
        earlier, step = self.earlier, found.first
        if step is None:
            step = min(line.step for line in found.lines)
        if found.total is None or earlier.total is None or step > max(earlier.first, 1):
            return 0
        done = earlier.total - found.total
        same = found.unit == earlier.unit or (earlier.unit or "").startswith(BAR)
        return done if same and 0 < done <= earlier.reached else 0

    def _is_alike(self, lines: Sequence[Line], now: float) -> bool:
        """Check whether steps are those that were known at their time, as far as one can tell."""
        newest = max(lines, key=lambda line: line.step)
        (began, first), (ended, last) = self._start or (now, 0), (self._passed or [(now, 0)])[-1]
        part = ((newest.time or now) - began) / (ended - began) if ended > began else 1.0
        expected = first + min(1.0, part) * (last - first)
        return abs(newest.step - expected) <= max(_FEW, _ALIKE * expected)


# Seconds by which a line may come later than the save that it goes with.
_LATE = 1.0
# How far two sources may differ that count the same: a part of the steps, or some steps.
_ALIKE, _FEW = 0.3, 3
# Steps after which that can be told.
_TELLING = 20


class EpochNumbers:
    """Epochs by the numbers that a program gives them, which begin with 0 or with 1.

    Which of them, the first one of a run shows, and the last one where their number is known.
    """

    def __init__(self, first: int | None = None) -> None:
        self.first = first
        """The number of the first epoch; None if it is not known."""

    def before(self, epoch: int, epochs: int | None = None) -> int:
        """Return how many epochs come before one, of ``epochs`` if that is known."""
        if self.first is None or epoch == epochs:
            self.first = max(0, min(epoch, 1))
        return max(0, epoch - self.first)


class StepNumbers:
    """Steps that a program counts anew in each epoch, one after the other.

    Steps fall too where another rank prints the same a little later, or where something is done
    again: then they stay as they are.
    """

    def __init__(self) -> None:
        self.begins_again = False
        """The steps of several epochs were seen."""
        # The steps of the epochs before, and of this one the first and the two furthest.
        self._before = 0
        self._first: int | None = None
        self._furthest = self._second = 0
        self._seen = 0
        self._epoch = 0

    def counted(self, step: int, total: int | None = None, epoch: int | None = None) -> int:
        """Return a step with those of the epochs before.

        ``total`` is the end of the program's own count, ``epoch`` the number of the epoch, where it
        says so.
        """
        if self._first is None:
            self._first = self._furthest = self._second = step
            self._epoch = epoch or 0
        elif step < self._furthest and self._is_over(step, total, epoch):
            self.begins_again = True
            self._before += total or self._furthest + (self._first == 0)
            self._first = self._furthest = self._second = step
            self._seen, self._epoch = 0, epoch or 0
        elif step > self._furthest:
            self._second, self._furthest = self._furthest, step
            self._seen += 1
        return self._before + step

    def _is_over(self, step: int, total: int | None, epoch: int | None) -> bool:
        """Check whether the epoch is over, as a lower step is printed."""
        if epoch is not None:
            return epoch > self._epoch
        if step > (self._first or 0):
            return False
        if total is None:
            return self._seen >= _LEAST_RISES
        return 2 * self._furthest - self._second >= total


# Steps of an epoch after the first: of fewer, another rank may print the same ones again.
_LEAST_RISES = 2


def plain(text: str) -> str:
    """Return a text without the codes that move a cursor or colour a terminal."""
    return _CONTROL.sub("", text)


def spread(
    rows: Sequence[tuple[int, dict[str, float]]], before: int, since: float, until: float
) -> Iterator[Line]:
    """Yield rows without times as lines: the steps after ``before`` are taken to be of one length.

    They were done between the times ``since`` and ``until``, in seconds since the epoch.
    """
    reached = max((step for step, _ in rows), default=before)
    for step, values in rows:
        part = (step - before) / (reached - before) if step > before else 0.0
        yield Line(step, since + part * (until - since), values)


def name_values(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return values by names that a line of metrics may have."""
    found: dict[str, float] = {}
    for name, value in values:
        name = name[:_MOST_NAME]
        if len(found) < MOST_NAMES and name not in RESERVED:
            found[name] = value
    return found


def numbers(texts: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return the numbers among texts, by names that a line of metrics may have."""
    found = ((name, number(text)) for name, text in texts)
    return name_values((name, value) for name, value in found if value is not None)


def number(text: str) -> float | None:
    """Return the number that a text is, but for what stands around it; None for any other text."""
    found = _NUMBER.fullmatch(text) if len(text) <= _MOST_NUMBER else None
    return float(found[1].replace(",", "")) if found else None


_MOST_NUMBER = 40
# Its commas divide thousands: 0,125 is not 125.
_NUMBER = re.compile(
    r"""[\s(\[{'"]*([-+]?(?:(?=\.?\d)(?:[1-9]\d{0,2}(?:,\d{3})+|\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?"""
    r"""|nan|NaN|inf|Infinity))[\s)\]}'",;.%]*"""
)
