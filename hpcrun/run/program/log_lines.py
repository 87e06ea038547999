"""Progress in what rank 0 prints: a pattern of the user's, or tqdm's bars."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hpcrun.run.program.pattern_search import PatternSearch
from hpcrun.run.program.progress_source import MOST_BYTES, Found, Look, named, number
from hpcrun.state import files
from hpcrun.state.metrics_file import Line

# What a pattern is applied to; longer lines are cut.
MOST_LINE = 1_000
# Seconds for which a bar is watched before it counts: it may be that of a preparation.
BAR_WAITS = 30.0
# Seconds between two lines of a bar.
_BAR_EVERY = 1.0

_BAR = re.compile(
    r"^(?P<what>[^|%]{0,80}?):?\s*\d{1,3}%\|[^|]{0,400}\|\s*(?P<done>\d{1,12})/(?P<total>\d{1,12})"
    r"\s*\[(?P<time>[\d:]{1,12})<"
)
_TRAINS = re.compile(r"\b(epoch|steps?|train(ing)?|iter(ation)?s?)\b", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\s*(\d{1,9})(?:\s*/\s*(\d{1,9}))?", re.IGNORECASE)
_CONTROL = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


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
            descriptor, size = files.open_regular(self.path)
        except OSError:
            return ()
        try:
            if size - self._offset > _MOST_BEHIND:
                self._offset, self._held = size - MOST_BYTES, b""
            data = os.pread(descriptor, MOST_BYTES, self._offset)
            self.modified = os.fstat(descriptor).st_mtime
        except OSError:
            return ()
        finally:
            os.close(descriptor)
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
    ``epoch`` (from 0) and ``epoch_total`` are among them, the step is that of an epoch. With the
    group ``one_step`` each line is a step, counted from what ``done`` returns at the first.
    """

    def __init__(self, pattern: str, done: Callable[[], int] = int) -> None:
        self._search = PatternSearch(pattern)
        self._done = done
        self._counted: int | None = None

    def close(self) -> None:
        """End what searches for the pattern."""
        self._search.close()

    def poll(self, look: Look) -> Found:
        """Return a line for each match with a step, at even distances since the last look."""
        found = Found()
        steps: list[tuple[int, dict[str, float]]] = []
        before = self._search.problem
        texts = [_CONTROL.sub("", text[:MOST_LINE]) for text in look.text]
        for groups in filter(None, self._search.search(texts)):
            is_one = groups.pop("one_step", None) is not None
            numbers = [
                (name, value)
                for name, group in groups.items()
                if group is not None and (value := number(group.strip())) is not None
            ]
            values = dict(numbers)
            found.total = _whole(values.pop("total", None)) or found.total
            step = _whole(values.pop("step", None))
            if is_one:
                self._counted = (self._done() if self._counted is None else self._counted) + 1
                step = self._counted
            in_epoch = _whole(values.pop("epoch_total", None))
            if step is not None:
                step += (in_epoch or 0) * (_whole(values.get("epoch")) or 0)
                steps.append((step, named(values.items())))
        for at, (step, own) in enumerate(steps, 1):
            time = look.since + at / len(steps) * (look.time - look.since)
            found.lines.append(Line(step, time, own))
        found.problem = None if before else self._search.problem
        return found


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == value and abs(value) < 1e15 else None


class Bar(NamedTuple):
    """One update of a progress bar."""

    kind: str
    """What it counts: its description without numbers."""
    step: int
    total: int | None
    """The steps of all epochs, where the bar is that of one and says how many there are."""
    own_total: int
    """The bar's own end."""
    elapsed: float

    def is_like(self, other: Bar | None) -> bool:
        """Check whether both are updates of one bar, as far as one can tell."""
        mine = self.kind, self.own_total
        return other is not None and mine == (other.kind, other.own_total)


def bar(text: str) -> Bar | None:
    """Return the training's progress that a line shows; None if it shows none."""
    match = _BAR.match(_CONTROL.sub("", text[:MOST_LINE]).strip())
    if match is None:
        return None
    what = match["what"].strip()
    done, own = int(match["done"]), int(match["total"])
    # tqdm's own bars of other things (Map, Loading, Downloading) have descriptions.
    if own == 0 or done > own or (what and not _TRAINS.search(what)):
        return None
    elapsed = 0.0
    for part in match["time"].split(":"):
        elapsed = 60 * elapsed + float(part or 0)
    epoch = _EPOCH.search(what)
    if epoch is None:
        return Bar(re.sub(r"\d+", "", what), done, own, own, elapsed)
    # ``Epoch 1/3`` counts from 1, ``Epoch 0`` (Lightning) from 0.
    of = int(epoch[2]) if epoch[2] else None
    before = int(epoch[1]) - (of is not None)
    total = of * own if of else None
    return Bar("epoch", max(0, before) * own + done, total, own, elapsed)


class ProgressBars:
    """The steps of the bar that trains.

    A bar that is there for `BAR_WAITS` seconds is the training's, until its end; evaluations have
    bars of their own meanwhile.
    """

    def __init__(self) -> None:
        self.main: Bar | None = None
        """The training's newest state, as far as one can tell yet."""
        self.since: float | None = None
        """When it began, in seconds since the epoch."""
        self.waiting: list[Line] = []
        """Updates that `poll` has not returned yet, at most one a second."""
        # The newest update, unless it is among them.
        self._newest: Line | None = None
        self._settled = False

    def poll(self, look: Look) -> Found:
        """Return a line for each update of the training's bar, at most one a second."""
        self.read(look)
        if self.main is None or not self.settles(look):
            return Found(total=self.main.total if self.main else None)
        lines, self.waiting = self.waiting, []
        return Found(lines, self.main.total)

    def read(self, look: Look) -> None:
        """Take the updates that were printed, at even distances since the last look."""
        updates = [one for text in look.text if (one := bar(text)) is not None]
        for at, one in enumerate(updates, 1):
            self.take(one, look.since + at / len(updates) * (look.time - look.since))

    def settles(self, look: Look) -> bool:
        """Check whether the bar is the training's, as far as one can tell by now."""
        waits = self.since is None or look.time - self.since < BAR_WAITS
        self._settled |= self.main is not None and (look.is_last or not waits)
        if look.is_last and self._newest is not None:
            self.waiting.append(self._newest)
            self._newest = None
        return self._settled

    def take(self, one: Bar, now: float) -> None:
        """Take an update, unless another bar is the training's."""
        before = self.main
        if before is not None and not one.is_like(before):
            if self._settled or before.step < before.own_total or one.elapsed <= before.elapsed:
                return
            # The first one ended sooner than this one lasts: it was a preparation.
            before, self.waiting = None, []
        if before is not None and one.step <= before.step:
            return
        if before is None:
            self.since = now - one.elapsed
        self.main = one
        if not one.step:
            return
        line = self._newest = Line(one.step, now, {})
        if not self.waiting or now - (self.waiting[-1].time or 0) >= _BAR_EVERY:
            self.waiting.append(line)
            self._newest = None
        elif one.step == one.own_total:
            self.waiting[-1] = line
            self._newest = None
