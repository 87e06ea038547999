"""The time that a command waits for Slurm: one limit for all questions of a reader.

A reader answers in seconds, with what is known from disk and from Slurm's last answers. A command
that acts needs Slurm: its requests take as long as each may, and it says that it waits. On compute
nodes there is no such limit but those of the requests themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

from hpcrun.errors import UsageError
from hpcrun.text import Say

# Seconds from its start for which a reader waits for Slurm, and the variable for others.
READER = 3.0
VARIABLE = "HPCRUN_SLURM_TIMEOUT"
_LONGEST = 86_400.0
# Seconds without an answer after which a person is told what is waited for.
_UNSAID_BY_READERS, _UNSAID = 2.0, 3.0


def daemon_of(program: str) -> str:
    """Return the daemon that a program of Slurm's asks."""
    return "slurmdbd" if program in ("sacct", "sacctmgr") else "slurmctld"


class Patience:
    """What a command may still wait for, and whom it no longer asks.

    Several threads may wait at once, which counts once.
    """

    def __init__(self, limit: float | None = None, say: Say | None = None) -> None:
        self.limit = limit
        """Seconds from now for all questions together, of which half are for them alone; None if
        each has a limit of its own."""
        self._began = time.monotonic()
        self._say = say
        self._failing: set[str] = set()
        self._timed_out: dict[str, float] = {}
        self._lock = threading.Lock()
        self._open, self._since, self._spent = 0, 0.0, 0.0
        self._timer: threading.Timer | None = None
        self._told = False

    def left(self, daemon: str, wanted: float) -> float:
        """Return the seconds that a question of ``wanted`` seconds may take; 0 to ask nothing."""
        if self.limit is None:
            return wanted
        if daemon in self._timed_out:
            return 0.0
        now = time.monotonic()
        spent = self._spent + (now - self._since if self._open else 0.0)
        left = max(self.limit - (now - self._began), self.limit / 2 - spent)
        return max(0.0, min(wanted, left))

    def is_silent(self, daemon: str) -> bool:
        """Check whether a daemon did not answer this command's last question."""
        return daemon in self._failing

    def heard(self, daemon: str) -> None:
        """Take note of an answer."""
        self._failing.discard(daemon)
        self._told = False

    def unheard(self, daemon: str, seconds: float | None = None) -> None:
        """Take note of a daemon that did not answer, for so many seconds where these were all.

        A reader does not ask it again then.
        """
        self._failing.add(daemon)
        if seconds is not None:
            self._timed_out[daemon] = seconds

    def waited(self, daemon: str) -> float:
        """Return for how many seconds a daemon did not answer that is not asked again."""
        return self._timed_out.get(daemon, self._spent)

    @contextlib.contextmanager
    def waiting(self, program: str, seconds: float) -> Iterator[None]:
        """Count the time of the block, in which a program is waited for at most so many seconds."""
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
                self._timer = self._announcement(program, seconds)
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    self._spent += time.monotonic() - self._since
                    if self._timer is not None:
                        self._timer.cancel()

    def _announcement(self, program: str, seconds: float) -> threading.Timer | None:
        """Return the running timer that says what is waited for; None if nobody is told.

        A reader says at its end what did not answer, and only a person at a terminal cannot wait.
        """
        say, is_reader = self._say, self.limit is not None
        if say is None or self._told or (is_reader and not sys.stderr.isatty()):
            return None

        def tell() -> None:
            self._told = True
            daemon = daemon_of(program)
            say(f"waiting for {daemon} to answer {program}, {seconds:.0f} s at most")

        timer = threading.Timer(_UNSAID_BY_READERS if is_reader else _UNSAID, tell)
        timer.daemon = True
        timer.start()
        return timer


_current: ContextVar[Patience | None] = ContextVar("patience", default=None)


def current() -> Patience:
    """Return the patience of this command; one without a limit outside `reading`."""
    return _current.get() or Patience()


@contextlib.contextmanager
def reading(say: Say | None = None, limit: float | None = None) -> Iterator[None]:
    """Be a reader during the block, in this thread: wait for ``limit`` seconds from now.

    By default 3 s, or HPCRUN_SLURM_TIMEOUT; raises UsageError if that is no number of seconds.
    """
    token = _current.set(Patience(_limit() if limit is None else limit, say))
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def acting(say: Say) -> Iterator[None]:
    """Be a command that acts during the block, in this thread: say that Slurm is waited for."""
    token = _current.set(Patience(None, say))
    try:
        yield
    finally:
        _current.reset(token)


def act() -> None:
    """Be a command that acts from now on: wait for each request as long as that may take."""
    current().limit = None


def _limit() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or READER)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{VARIABLE}={text[:100]!r} is not a number of seconds up to {_LONGEST:.0f}",
            hint=f"it is how long commands that read wait for Slurm; without it {READER:.0f} s",
        )
    return seconds
