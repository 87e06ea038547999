"""The Trainer of Hugging Face: what it prints, and the state that it saves with its checkpoints.

It prints ``{'loss': 0.5, 'epoch': 0.1}`` without the step, which is that of its progress bar, or of
the line of the same epoch in ``log_history`` of ``trainer_state.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import (
    Found,
    Look,
    ReaderStart,
    name_values,
    numbers,
    spread,
)
from hpcrun.run.program.sources.progress_bars import ProgressBars, bar
from hpcrun.state import files
from hpcrun.state.metrics_file import Line

NAME = "trainer_state.json"
# Bytes of a state that is read: some 100,000 lines of its history.
_MOST_STATE = 1 << 24
_MOST_PRINTED = 4_000
_MOST_WAITING = 1_000
_MOST_LINES = 200_000
_PRINTED = re.compile(r"^\{'[^{}]*\}$")
_PAIR = re.compile(r"'([^']{1,100})': '?([^',}\s]{1,40})'?")


def printed(text: str) -> dict[str, float] | None:
    """Return the metrics of a line that the Trainer printed; None for any other line."""
    text = text.strip()
    if len(text) > _MOST_PRINTED or not _PRINTED.match(text):
        return None
    found = numbers(_PAIR.findall(text))
    return found if "epoch" in found and len(found) > 1 else None


class TrainerState:
    """What one Trainer prints and saves. States that were ``there`` before are not its own."""

    def __init__(self, there: Iterable[FoundFile] = ()) -> None:
        self._seen = {one.path: one for one in there}
        # What the newest of them knows: a Trainer that resumes has it in its own history.
        states = [one for one in self._seen.values() if one.path.name == NAME]
        newest = max(states, key=lambda one: one.modified, default=None)
        state = read(newest.path) if newest is not None else None
        self._inherited = [*_history(state)] if state is not None else []
        self._bars = ProgressBars()
        # Printed lines whose step is not known yet, with the times at which they were seen.
        self._waiting: list[Line] = []
        # The last text was printed by the training, not by an evaluation.
        self._trains = False
        self._total: int | None = None
        # The last step that is known, and since when.
        self._last, self._since = 0, 0.0

    @classmethod
    def begin(cls, start: ReaderStart) -> TrainerState:
        """Return a reader of one attempt."""
        return cls(start.there)

    def poll(self, look: Look) -> Found:
        """Return the lines whose steps are known."""
        found = Found()
        self._since = self._since or look.time
        for at, text in enumerate(look.text, 1):
            moment = look.since + at / len(look.text) * (look.time - look.since)
            trains, self._trains = self._trains, False
            if (one := bar(text)) is not None:
                if trains and one.step:
                    # tqdm draws its bar anew below what is printed: it is no preparation's.
                    self._bars.main = one
                self._bars.take(one, moment)
                if self._waiting and one.is_like(self._bars.main):
                    found.lines += self._printed()
            elif (values := printed(text)) is not None:
                self._trains = "loss" in values
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting.append(Line(0, moment, values))
        for one_file in look.files or ():
            path = one_file.path
            if path.name == NAME and self._seen.get(path) != one_file:
                self._seen[path] = one_file
                if (state := read(path)) is not None:
                    found.path = path
                    found.lines += self._saved(state, one_file.modified, look.time)
        if look.is_last and self._bars.main is not None:
            found.lines += self._printed()
        found.total, found.unit = self._total, self._bars.unit
        return found

    def _printed(self) -> Iterator[Line]:
        """Yield what was printed, at the step of the bar."""
        step = self._bars.step
        waiting, self._waiting = self._waiting, []
        for _, time, values in waiting:
            if step >= self._last:
                yield Line(step, time, values)
        self._total, self._last = self._bars.total, max(self._last, step)

    def _saved(self, state: dict[str, Any], saved: float, now: float) -> Iterator[Line]:
        """Yield the lines of a state's history that are not known yet."""
        total, entries = state.get("max_steps"), [*_history(state)]
        if type(total) is int and total > 0:
            self._total = total
        if self._inherited:
            pairs = zip(entries, self._inherited, strict=False)
            same = takewhile(lambda pair: pair[0] == pair[1], pairs)
            self._last = max([self._last, *(step for (step, _), _ in same)])
            self._inherited = []
        new = [(step, values) for step, values in entries if step > self._last]
        if not new:
            return
        seen = {_key(line.values): line.time for line in self._waiting}
        saved = min(max(saved, self._since), now)
        for line in spread(new, self._last, self._since, saved):
            yield line._replace(time=seen.get(_key(line.values)) or line.time)
        self._last, self._since = max(step for step, _ in new), saved
        self._waiting.clear()


def _key(values: dict[str, float]) -> str:
    """Return the epoch as the Trainer prints it."""
    return f"{values.get('epoch', -1.0):.4g}"


def read(path: Path) -> dict[str, Any] | None:
    """Read a state; None if there is none, or if it is still being written."""
    try:
        found = files.read_json(path, _MOST_STATE)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _history(state: dict[str, Any]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield steps and values of the history of a state."""
    history = state.get("log_history")
    if isinstance(history, list):
        yield from map(_entry, islice(history, _MOST_LINES))


def _entry(entry: Any) -> tuple[int, dict[str, float]]:
    """Return step and values of a line of the history; step -1 if it is none."""
    step = entry.get("step") if isinstance(entry, dict) else None
    if type(step) is not int or not 0 <= step < 1 << 53:
        return -1, {}
    pairs = ((str(name), value) for name, value in islice(entry.items(), 200))
    values = ((name, float(value)) for name, value in pairs if type(value) in (int, float))
    return step, name_values(values)
