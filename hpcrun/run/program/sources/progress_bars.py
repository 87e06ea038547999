"""Progress by tqdm's bars in what rank 0 prints."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpcrun.run.program.progress_source import (
    BAR,
    MOST_LINE,
    STEPS,
    EpochNumbers,
    Found,
    Look,
    ReaderStart,
    numbers,
    plain,
)
from hpcrun.state.metrics_file import Line

# Seconds for which a bar is watched before it counts: it may be that of a preparation.
BAR_WAITS = 30.0
# Seconds between two lines of a bar.
_BAR_EVERY = 1.0
# Seconds by which a bar's own clock may be wrong here, and that it runs before it may be judged by.
_CLOCK, _JUDGED = 5.0, 10.0

_BAR = re.compile(
    r"^(?P<what>[^|%]{0,80}?):?\s*\d{1,3}%\|[^|]{0,400}\|\s*(?P<done>\d{1,12})/(?P<total>\d{1,12})"
    r"\s*\[(?P<time>[\d:]{1,12})<[^],]{0,20}(?P<rate>,\s*[^],]{0,40})?"
)
# A bar without a description may be that of anything, one with another description is none of ours.
_TRAINS = re.compile(
    r"(?<![a-z])(epochs?|steps?|train(?:ing)?|iter(?:ation)?s?|loss)(?![a-z])", re.IGNORECASE
)
_PREPARES = re.compile(
    r"(?<![a-z])(?:tokeniz|map|filter|load|download|fetch|pack|truncat|convert|process|preprocess"
    r"|generat|pars|read|writ|sav|cach|creat|build|comput|extract|add|apply|flatten|scann|resolv"
    r"|runn)",
    re.IGNORECASE,
)
_EVALUATES = re.compile(
    r"(?<![a-z])(?:val(?:id|idation|idating)?(?![a-z])|eval|test|predict|infer|sanity)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepochs?\W{0,3}(\d{1,9})(?:\s*/\s*(\d{1,9}))?", re.IGNORECASE)
# Examples of a data set, files and bytes are no steps.
_OTHER_RATE = re.compile(r"\b(?:examples?|files?|shards?)\b|[\d?.\s][kKMGT]?i?B/s|s/[kKMGT]?i?B\b")
_VALUE = re.compile(r"[,\s]([A-Za-z_][\w./-]{0,60})=([^,\]\s]{1,40})")


class Bar(NamedTuple):
    """One update of a progress bar."""

    kind: str
    """What it counts, by the words of its description that say so."""
    step: int
    """Of itself: in its epoch, where it is that of one."""
    own_total: int
    """The bar's own end."""
    elapsed: float
    """Seconds since it began."""
    epoch: int | None = None
    """The number of its epoch, as printed."""
    epochs: int | None = None
    """How many epochs there are, where it says so."""
    values: dict[str, float] = {}  # noqa: RUF012 - no bar changes it
    """The metrics beside it (tqdm's postfix)."""

    def is_like(self, other: Bar | None) -> bool:
        """Check whether both are updates of one bar, as far as one can tell."""
        if other is None or self.own_total != other.own_total:
            return False
        kinds = {self.kind, other.kind}
        # A program may describe its bar only after its first step.
        return len(kinds) == 1 or ("" in kinds and self.epoch is other.epoch is None)


def bar(text: str) -> Bar | None:
    """Return the training's progress that a line shows; None if it shows none."""
    text = plain(text[:MOST_LINE]).strip()
    match = _BAR.match(text)
    if match is None:
        return None
    what = match["what"].strip()
    done, own = int(match["done"]), int(match["total"])
    # tqdm's own bars of other things (Map, Loading, Downloading) have descriptions.
    if own == 0 or done > own or (what and not _trains(what)):
        return None
    if _OTHER_RATE.search(match["rate"] or ""):
        return None
    elapsed = 0.0
    for part in match["time"].split(":"):
        elapsed = 60 * elapsed + float(part or 0)
    # Lightning's number of a version is no metric.
    values = numbers(pair for pair in _VALUE.findall(text[match.end() :]) if pair[0] != "v_num")
    epoch = _EPOCH.search(what)
    if epoch is None:
        kind = " ".join(word.lower() for word in _TRAINS.findall(what))
        return Bar(kind, done, own, elapsed, values=values)
    of = int(epoch[2]) if epoch[2] else None
    return Bar("epoch", done, own, elapsed, int(epoch[1]), of, values)


def _trains(what: str) -> bool:
    words = [word.lower() for word in _TRAINS.findall(what)]
    if not words or _PREPARES.search(what):
        return False
    # The metrics of both may be there.
    return any(word.startswith("train") for word in words) or not _EVALUATES.search(what)


class ProgressBars:
    """The steps of the bar that trains.

    A bar that is there for `BAR_WAITS` seconds is the training's, until its end; evaluations have
    bars of their own meanwhile. A program may have a new one in each epoch: its steps go on from
    those of the epochs before, and how many there will be is known where a bar says so.

    ``first_epoch`` is the number that the run's first epoch has, 0 or 1; None if it is not known.
    """

    def __init__(self, first_epoch: int | None = None) -> None:
        self.main: Bar | None = None
        """The training's newest state, as far as one can tell yet."""
        self.since: float | None = None
        """When the first one began, in seconds since the epoch."""
        self.waiting: list[Line] = []
        """Updates that `poll` has not returned yet, at most one a second."""
        self.epochs = EpochNumbers(first_epoch)
        # The newest update, unless it is among them; and the first step.
        self._newest: Line | None = None
        self._first: int | None = None
        self._settled = False
        # The steps of the epochs before, when this one's bar began, and whether there was another.
        self._before, self._began, self._again = 0, 0.0, False

    @property
    def step(self) -> int:
        """The finished steps; 0 without a bar."""
        return self._before + self.main.step if self.main else 0

    @property
    def unit(self) -> str:
        """What is counted; see `Found.unit`."""
        if self.main is None:
            return STEPS
        return f"{BAR} {self.main.own_total if self.main.epoch is None else 'an epoch'}"

    @property
    def total(self) -> int | None:
        """How many steps there will be; None if that is not known."""
        main = self.main
        if main is None or (main.epoch is None and self._again):
            return None
        if main.epoch is None:
            return main.own_total
        if main.epochs is None:
            return None
        left = main.epochs - self.epochs.before(main.epoch, main.epochs)
        return self._before + left * main.own_total

    @classmethod
    def begin(cls, start: ReaderStart) -> ProgressBars:
        """Return a reader of one attempt."""
        return cls(start.first_epoch)

    def poll(self, look: Look) -> Found:
        """Return a line for each update of the training's bar, at most one a second."""
        self.read(look)
        found = Found(first=self._first, first_epoch=self.epochs.first)
        if self.main is not None:
            found.total, found.is_endless = self.total, self.total is None
            found.unit = self.unit
        if self.main is not None and self.settles(look):
            found.lines, self.waiting = self.waiting, []
        return found

    def read(self, look: Look) -> None:
        """Take the updates that were printed, at even distances since the last look."""
        updates = [one for text in look.text if (one := bar(text)) is not None]
        for at, one in enumerate(updates, 1):
            self.take(one, look.since + at / len(updates) * (look.time - look.since))

    def settles(self, look: Look) -> bool:
        """Check whether the bar is the training's, as far as one can tell by now."""
        waits = self.since is None or look.time - self.since < BAR_WAITS
        main, age = self.main, look.time - self._began
        # One without a description, of which more was done after it than with it, prepared that.
        is_over = main and main.step == main.own_total and age > 2 * main.elapsed + _CLOCK
        is_trainings = main is not None and (self._again or main.kind != "" or not is_over)
        self._settled |= is_trainings and (look.is_last or not waits)
        if look.is_last and self._newest is not None:
            self.waiting.append(self._newest)
            self._newest = None
        return self._settled

    def take(self, one: Bar, now: float) -> None:
        """Take an update, unless another bar is the training's."""
        before = self.main
        if before is not None and not self._is_next(one, before, now):
            is_earlier = one.is_like(before) or None not in (one.epoch, before.epoch)
            if is_earlier or self._settled or self._again or before.step < before.own_total:
                return
            if one.elapsed <= before.elapsed:
                return
            # The first one ended sooner than this one lasts: it was a preparation.
            before, self.waiting = None, []
        if before is None:
            self.since = self._began = now - one.elapsed
            self._before = 0
            if one.epoch is not None:
                self._before = self.epochs.before(one.epoch, one.epochs) * one.own_total
            self._first = self._before + one.step
        self.main = one
        if not one.step:
            return
        line = self._newest = Line(self.step, now, one.values)
        if not self.waiting or now - (self.waiting[-1].time or 0) >= _BAR_EVERY:
            self.waiting.append(line)
            self._newest = None
        elif one.step == one.own_total:
            # The first one tells with what the program began.
            self.waiting[1:] = [*self.waiting[1:-1], line]
            self._newest = None

    def _is_next(self, one: Bar, before: Bar, now: float) -> bool:
        """Check whether an update comes next after the newest of the training's bar.

        That may be the bar of the next epoch. Another rank may print the same ones a little later.
        """
        if one.epoch is not None and before.epoch is not None and one.epoch != before.epoch:
            if one.epoch < before.epoch:
                return False
            return self._begin_again(one, (one.epoch - before.epoch) * before.own_total, now)
        if one.is_like(before):
            if one.step == 0 and before.step == before.own_total and one.epoch is None:
                return self._begin_again(one, before.own_total, now)
            is_late = one.elapsed > 1.1 * (now - self._began) + _CLOCK
            return one.step > before.step and not is_late
        # The end of a bar may change under way.
        is_older = one.elapsed >= max(before.elapsed, _JUDGED)
        is_one = abs(now - one.elapsed - self._began) <= _CLOCK and one.kind == before.kind
        return is_one and is_older and one.step >= before.step > 0

    def _begin_again(self, one: Bar, steps: int, now: float) -> bool:
        self._before += steps
        self._began, self._again = now - one.elapsed, True
        return True
