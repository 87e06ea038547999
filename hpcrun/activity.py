"""The line that tells a person who waits what a command is doing.

::

    with activity.doing("freezing the code"):
        ...

Once a command has printed nothing for two seconds, it says what it is doing and since when: on a
terminal in one line that is drawn anew, elsewhere in lines of their own, ever more seldom while
they differ in numbers alone. Outside of `tell_on` nothing is said, so that any function may tell
what it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TextIO, TypeVar

from hpcrun import terminal
from hpcrun.text import duration, entry, one_line

_Item = TypeVar("_Item")

# Seconds of silence, after which a line is printed; of a wait that lasts, and then.
SILENCE, LASTING, SELDOM = 2.3, 600.0, 30.0
# Seconds after which a line that differs in numbers alone is printed again at the latest.
_REPEATED = 300.0
_NUMBERS = re.compile(r"\d[\d.,:]*")
# Seconds between two drawings of the line on a terminal.
_REDRAWN = 1.0
# ``HPCRUN_PROGRESS=0`` leaves out all of this, for logs of what nobody watches.
VARIABLE = "HPCRUN_PROGRESS"


class ActivityLine:
    """The line of a command, on one stream; several threads may print."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.RLock()
        # What is done, and since when; the innermost comes last.
        self._tasks: list[tuple[Callable[[], str], float]] = []
        self._heard = time.monotonic()
        self._is_drawn = False
        self._ended = threading.Event()

    @contextlib.contextmanager
    def doing(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Tell during the block what is done; a function is asked each time, by another thread."""
        task = what if callable(what) else (lambda: what), time.monotonic()
        with self._lock:
            self._tasks.append(task)
            if len(self._tasks) == 1:
                self._ended = threading.Event()
                threading.Thread(target=self._tell, args=(self._ended,), daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._tasks.remove(task)
                if not self._tasks:
                    self._ended.set()
                self._clear()

    @contextlib.contextmanager
    def printing(self) -> Iterator[None]:
        """Print something else during the block, on this terminal."""
        with self._lock:
            self._clear()
            try:
                yield
            finally:
                self._heard = time.monotonic()

    def say(self, message: str) -> None:
        """Print a message, whose further lines are indented."""
        with self.printing():
            self._print(entry(message) + "\n")

    def _tell(self, ended: threading.Event) -> None:
        pause = max(0.1, SILENCE - (time.monotonic() - self._heard))
        words, said = "", 0.0
        while not ended.wait(pause):
            with self._lock:
                if ended.is_set():
                    return
                what, since = self._tasks[-1]
                now = time.monotonic()
                lasts = SILENCE if self._live or now - since < LASTING else SELDOM
                pause = lasts - (now - self._heard)
                if pause > 0:
                    continue
            # It may read files, for which nobody who prints should wait.
            told, took = _text_of(what), f" ({duration(time.monotonic() - since)})"
            before, words = words, _NUMBERS.sub("#", told)
            is_due = words != before or now - said >= min(_REPEATED, said - since)
            with self._lock:
                if not ended.is_set() and (self._live or is_due):
                    self._show(told, took)
                    said = now
            pause = _REDRAWN if self._live else lasts

    def _show(self, told: str, took: str) -> None:
        if self._live:
            width = 0
            with contextlib.suppress(OSError, ValueError):
                width = os.get_terminal_size(self._stream.fileno()).columns
            room = max(20, (width or 80) - 1 - len(took))
            self._clear()
            self._print((told if len(told) <= room else f"{told[: room - 1]}…") + took)
            self._is_drawn = True
        else:
            self._print(f"{told}{took}\n")
            self._heard = time.monotonic()

    def _clear(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            with contextlib.suppress(OSError, ValueError):
                plain = terminal.styled(self._stream)
                plain.write("\r\x1b[K")
                plain.flush()

    def _print(self, text: str) -> None:
        # A terminal that is gone ends no command.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _text_of(what: Callable[[], str]) -> str:
    try:
        return one_line(what())
    except Exception as error:
        # The thread goes on with what is told after this.
        return f"working ({type(error).__name__} while looking how far it is)"


_current: ContextVar[ActivityLine | None] = ContextVar("activity", default=None)


def current() -> ActivityLine | None:
    """Return the reporter of this command; None where nothing is told."""
    return _current.get()


@contextlib.contextmanager
def tell_on(stream: TextIO | None) -> Iterator[None]:
    """Tell on a stream during the block what is done in this thread; None tells nothing."""
    if os.environ.get(VARIABLE) == "0":
        stream = None
    token = _current.set(None if stream is None else ActivityLine(stream))
    try:
        yield
    finally:
        _current.reset(token)


def doing(what: str | Callable[[], str]) -> AbstractContextManager[None]:
    """Tell the person who waits, if there is one, what is done in the block."""
    return contextlib.nullcontext() if (one := _current.get()) is None else one.doing(what)


def count(items: Sequence[_Item], what: str) -> Iterator[_Item]:
    """Yield the items, and tell meanwhile with how many of them it is done."""
    done = 0
    with doing(lambda: f"{what}: {done:,} of {len(items):,}"):
        for item in items:
            yield item
            done += 1


def printing() -> AbstractContextManager[None]:
    """Print in the block, in place of the line that is on the terminal."""
    return contextlib.nullcontext() if (one := _current.get()) is None else one.printing()
