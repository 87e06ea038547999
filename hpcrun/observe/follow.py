"""Follow many growing files by polling: works on NFS and Lustre, where inotify sees nothing.

::

    follower = Follower(discover=lambda final: sources, over=lambda: job_is_done)
    for line in follower.lines():
        print(line.source.rank, line.text)

Files that grow are polled often and keep their descriptor; quiet ones ever more rarely, and are
opened anew, which also makes an NFS client look at the server again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hpcrun.observe.lines import CHUNK, LineSplitter, start_of_tail

HOT = 0.1
COLD = 1.0
DISCOVER = 1.0
CHECK = 3.0
MOST_OPEN = 256
BURST = 16 * CHUNK


@dataclass(frozen=True)
class Source:
    """One log file.

    Attributes
    ----------
    path
        The file; it need not exist yet.
    experiment, run, attempt
        Whose it is; the attempt is None for the batch step's log, which covers several.
    stream
        ``worker``, ``agent`` or ``batch``.
    rank
        Of a worker.
    node
        Of an agent.
    """

    path: Path
    experiment: str
    run: int
    attempt: int | None
    stream: str
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True)
class Line:
    """One line of one file, without its end."""

    source: Source
    text: str


@dataclass
class _Tail:
    """How far one file was read."""

    source: Source
    offset: int = 0
    identity: tuple[int, int] | None = None
    stream: BinaryIO | None = None
    splitter: LineSplitter = field(default_factory=LineSplitter)
    interval: float = HOT
    due: float = 0.0

    def read(self, most: int) -> tuple[list[Line], bool]:
        """Lines that came since the last read, and whether there may be more at once."""
        lines: list[str] = []
        if self.stream is None and not self._open(lines):
            return self._lines(lines), False
        assert self.stream is not None
        if os.fstat(self.stream.fileno()).st_size < self.offset:
            lines += self.splitter.flush()
            self.offset = 0
        self.stream.seek(self.offset)
        read = 0
        while read < most:
            data = self.stream.read(CHUNK)
            if not data:
                break
            read += len(data)
            self.offset += len(data)
            lines += self.splitter.feed(data)
        return self._lines(lines), read >= most

    def _open(self, lines: list[str]) -> bool:
        try:
            stream = open(self.source.path, "rb", buffering=0)  # noqa: SIM115
        except OSError:
            return False
        found = os.fstat(stream.fileno())
        identity = (found.st_dev, found.st_ino)
        if self.identity not in (None, identity):
            lines += self.splitter.flush()
            self.offset = 0
        self.identity, self.stream = identity, stream
        return True

    def skip_to_tail(self, count: int) -> None:
        """Begin with the last ``count`` lines of what is there now."""
        try:
            with open(self.source.path, "rb", buffering=0) as stream:
                self.offset = start_of_tail(stream, count)
                found = os.fstat(stream.fileno())
                self.identity = (found.st_dev, found.st_ino)
        except OSError:
            self.offset = 0

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def finish(self) -> list[Line]:
        self.close()
        return self._lines(self.splitter.flush())

    def _lines(self, texts: Iterable[str]) -> list[Line]:
        return [Line(self.source, text) for text in texts]


class Follower:
    """Yields the lines of files as they grow, and of files as they appear.

    Parameters
    ----------
    discover
        Gives the sources of now; called again and again. Its argument is True the last time, when
        everything is over. A source that was given once is followed to the end.
    over
        Whether nothing more will be written; asked at most every ``check`` seconds, and more rarely
        when the answer is slow.
    tail
        Begin with so many lines of each file that exists at the start; None for all of them.
    follow
        False reads what is there and ends.
    idle
        Called before each pause, when all lines there are have been given: the time to flush.
    hot, cold
        Seconds between looks at a file that grows, and at one that has long been quiet.
    """

    def __init__(
        self,
        discover: Callable[[bool], Iterable[Source]],
        over: Callable[[], bool] = lambda: False,
        *,
        tail: int | None = None,
        follow: bool = True,
        idle: Callable[[], object] = lambda: None,
        hot: float = HOT,
        cold: float = COLD,
        check: float = CHECK,
    ) -> None:
        self._discover = discover
        self._over = over
        self._tail = tail
        self._follow = follow
        self._idle = idle
        self._hot, self._cold, self._check = hot, cold, check
        self._tails: dict[Path, _Tail] = {}
        self._open: set[Path] = set()

    def lines(self) -> Iterator[Line]:
        """Yield lines in the order of each file, until all is over and read.

        Closing the generator closes every file.
        """
        try:
            self._look(final=not self._follow, first=True)
            if self._follow:
                yield from self._watch()
                self._look(final=True)
            for tail in list(self._tails.values()):
                yield from self._drain(tail)
        finally:
            for tail in self._tails.values():
                tail.close()

    def _watch(self) -> Iterator[Line]:
        check = _Check(self._over, self._check)
        discovered, discover_every = time.monotonic(), DISCOVER
        while not check.over():
            now = time.monotonic()
            if now - discovered >= discover_every:
                self._look(final=False)
                discovered = time.monotonic()
                discover_every = max(DISCOVER, 20 * (discovered - now))
            for tail in list(self._tails.values()):
                if tail.due <= now:
                    yield from self._poll(tail, now)
            self._idle()
            time.sleep(self._pause())

    def _poll(self, tail: _Tail, now: float) -> Iterator[Line]:
        before = tail.offset
        lines, more = tail.read(BURST)
        grew = tail.offset != before
        tail.interval = self._hot if grew else min(self._cold, tail.interval * 1.5)
        tail.due = now if more else now + tail.interval
        path = tail.source.path
        if tail.interval < self._cold and (path in self._open or len(self._open) < MOST_OPEN):
            self._open.add(path)
        else:
            self._open.discard(path)
            tail.close()
        yield from lines

    def _pause(self) -> float:
        due = min((tail.due for tail in self._tails.values()), default=float("inf"))
        return min(self._hot, max(0.0, due - time.monotonic()))

    def _drain(self, tail: _Tail) -> Iterator[Line]:
        tail.close()
        more = True
        while more:
            lines, more = tail.read(BURST)
            yield from lines
        yield from tail.finish()

    def _look(self, *, final: bool, first: bool = False) -> None:
        for source in self._discover(final):
            if source.path in self._tails:
                continue
            tail = self._tails[source.path] = _Tail(source)
            if self._tail is not None and first:
                tail.skip_to_tail(self._tail)


class _Check:
    """Asks ``over`` beside the reading of files, because Slurm may take a minute to answer."""

    def __init__(self, over: Callable[[], bool], every: float) -> None:
        self._ask, self._every = over, every
        self._thread: threading.Thread | None = None
        self._took = self._due = 0.0
        self._over = False
        self._error: BaseException | None = None

    def over(self) -> bool:
        """The newest answer; False until there is one.

        Raises
        ------
        Exception
            What asking raised.
        """
        now = time.monotonic()
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._due = now + max(self._every, 20 * self._took)
            if self._error is not None:
                raise self._error
        if self._thread is None and not self._over and now >= self._due:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._thread.join(HOT)
        return self._over

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._over = self._ask()
        except BaseException as error:
            self._error = error
        self._took = time.monotonic() - began
