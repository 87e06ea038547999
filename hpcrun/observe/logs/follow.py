"""The follower of many growing files, which polls them.

::

    follower = Follower(discover=lambda final: sources, over=lambda: job_is_done)
    for block in follower.blocks():
        sys.stdout.buffer.write(block.data)

Inotify sees nothing of what other machines write to NFS or Lustre. Growing (hot) files stay open
and are polled in every turn. Files that have been quiet for a while (cold) are closed and polled in
turns, at a bounded rate whatever their number.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from hpcrun import mounts, shared_look
from hpcrun.observe.logs.tail import FULL, LineBlock, Source, Tail
from hpcrun.slurm.background import BackgroundCall

CHECK = 3.0
SOON = 0.05
MOST_OPEN = 4096
# Longest sleep in seconds, so that waiting lines and the answer to a question are seen soon.
SLICE = 0.5
# Longest pause in seconds between two questions whether all is over, where an answer takes long.
SELDOM = 20.0
# The same, where reading the answers for very many runs holds up the lines.
HELD = 20.0


@dataclass(frozen=True)
class Pace:
    """The rates at which files are polled."""

    interval: float = 0.1
    """Seconds between polls of hot files."""
    hot_looks: float = 20_000
    cold_looks: float = 1_500
    """Most polls per second, of hot and of cold files."""
    cold: float = 1.0
    """Seconds between polls of a cold file, where their number allows it."""
    linger: float = 10.0
    """Seconds for which a file that does not grow stays hot."""
    discover: float = 1.0
    """Seconds between looks for new files."""
    reopen: bool = False
    """Reopen files for each poll, as clients of network file systems need it."""
    burst: int = 1
    """Blocks read from one file before it is another's turn."""
    runs: float = 100.0
    """Runs per second that are searched for new files."""
    ledgers: int = 2000
    """Ledgers that are looked at per question whether the runs are over."""


LOCAL = Pace()
REMOTE = Pace(
    interval=0.25,
    hot_looks=100,
    cold_looks=25,
    cold=2.0,
    discover=2.0,
    reopen=True,
    burst=16,
    runs=10.0,
    ledgers=20,
)


def pace_of(directories: Iterable[Path]) -> Pace:
    """Return `REMOTE` if any of these lies on network storage, else `LOCAL`."""
    return REMOTE if any(map(is_remote, set(directories))) else LOCAL


@dataclass
class _Newest:
    """The newest attempt of a run, and its files."""

    attempt: int = 0
    tails: list[Tail] = field(default_factory=list)


@dataclass(eq=False)
class Follower:
    """Yields the lines of files as they appear and grow."""

    discover: Callable[[bool], Iterable[Source]]
    """Returns the current sources; called repeatedly. Its argument is True the last time, when
    everything is over. A source is followed to the end once it was returned."""
    over: Callable[[], bool] = lambda: False
    """Returns True once nothing more will be written. Called at most every ``check`` seconds, and
    more rarely when the answer is slow."""
    _: KW_ONLY
    ended: Callable[[Source], bool] = lambda source: False
    """Returns True once nothing more will be written to a source."""
    begin: Callable[[Tail], object] | None = None
    """Called with each file that exists at the start, to choose where to begin in it."""
    idle: Callable[[], object] = lambda: None
    """Called before each pause, when all lines were yielded: the time to flush."""
    pace: Pace = LOCAL
    check: float = CHECK
    raw: bool = False
    """Leave carriage returns and broken encodings unchanged."""
    moved: Callable[[Tail], object] = lambda tail: None
    """Called with each file of which lines are yielded, before they are."""

    def __post_init__(self) -> None:
        self._tails: dict[Path, Tail | None] = {}
        self._newest: dict[Path, _Newest] = {}
        self._hot: list[Tail] = []
        self._cold: deque[Tail] = deque()
        self._looks = 0.0
        self._is_first = True
        self._most_open = descriptors()

    def blocks(self) -> Iterator[LineBlock]:
        """Yield the lines of each file in their order, until all is over and read.

        An attempt's lines precede the first line of a later attempt. Closing the generator closes
        every file.
        """
        try:
            yield from self._look(final=False, first=True)
            yield from self._watch()
            yield from self._look(final=True)
            yield from self._drain(filter(None, list(self._tails.values())))
        finally:
            for tail in filter(None, self._tails.values()):
                tail.close()

    def _watch(self) -> Iterator[LineBlock]:
        check = _Check(self.over, self.check)
        pace = self.pace
        turn = time.monotonic()
        discover_at, paths_at = turn + pace.discover, turn + 1.0
        while not check.over():
            before, turn = turn, time.monotonic()
            if turn >= discover_at:
                yield from self._look(final=False)
                discover_at = turn + pace.discover
            paths_too = pace.reopen or turn >= paths_at
            if turn >= paths_at:
                paths_at = turn + 1.0
            more = yield from self._read_hot(turn, paths_too)
            yield from self._read_cold(turn, turn - before)
            self.idle()
            if not more or pace.reopen:
                looks = 0 if pace.reopen else len(self._hot)
                self._pause(turn + max(pace.interval, looks / pace.hot_looks), check)

    def _pause(self, until: float, check: _Check) -> None:
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE))
            if left > SLICE:
                self.idle()
                if check.over():
                    return

    def _read_hot(self, now: float, paths_too: bool) -> Generator[LineBlock, None, bool]:
        """Poll the hot files; return whether there is more to read at once.

        On network storage each turn polls only some of them, to spare the server bursts.
        """
        more = False
        close = len(self._hot) > self._most_open
        anew = self.pace.reopen
        first, self._is_first = self._is_first, False
        some = len(self._hot)
        if anew and not first:
            some = max(1, int(self.pace.hot_looks * self.pace.interval))
        looked, hot = self._hot[:some], self._hot[some:]

        def begin(tail: Tail) -> tuple[bytes, int]:
            found = tail.read()
            if close:
                tail.close()
            return found

        begun = shared_look.each(begin, looked) if first else itertools.repeat(None)
        for tail, begins in zip(looked, begun, strict=False):
            replaced = paths_too and tail.is_open and tail.replaced(anew=anew) and not first
            read = yield from self._read(tail, begins)
            if first and read < FULL:
                tail.quiet_since = now - tail.age()
            elif read:
                tail.quiet_since = now
                more = more or read >= FULL
            if replaced:
                yield from self._drain([tail])
                tail.restart()
            cool = now - tail.quiet_since > self.pace.linger
            if close or cool:
                tail.close()
            (self._cold if cool else hot).append(tail)
        self._hot = hot
        return more

    def _read(
        self, tail: Tail, begins: tuple[bytes, int] | None = None
    ) -> Generator[LineBlock, None, int]:
        """Poll one file, with a bounded number of reads; return the size of the last one.

        ``begins`` is what a first read of it has returned.
        """
        read, times = FULL, self.pace.burst
        while times and read >= FULL:
            times -= 1
            block, read = begins or tail.read()
            begins = None
            if block:
                self.moved(tail)
                yield LineBlock(tail.source, block, tail.written)
        return read

    def _read_cold(self, now: float, passed: float) -> Iterator[LineBlock]:
        """Poll as many cold files as are due."""
        a_second = min(len(self._cold) / self.pace.cold, self.pace.cold_looks)
        self._looks = min(self._looks + passed * a_second, float(len(self._cold)))
        while self._looks >= 1 and self._cold:
            self._looks -= 1
            tail = self._cold.popleft()
            if self._is_done(tail.source):
                yield from self._drain([tail])
                self._tails[tail.source.path] = None
            elif not self.pace.reopen and not tail.changed():
                self._cold.append(tail)
            elif (yield from self._read(tail)):
                tail.quiet_since = now
                self._hot.append(tail)
            else:
                tail.close()
                self._cold.append(tail)

    def _is_done(self, source: Source) -> bool:
        run = self._newest.get(source.run_key)
        newest = run.attempt if run is not None else 0
        return (source.attempt or newest) < newest or self.ended(source)

    def _drain(self, tails: Iterable[Tail]) -> Iterator[LineBlock]:
        """Read these files to their ends, some of each in turn, and close them."""
        left = list(tails)
        if self.pace.reopen:
            # An open file may not show yet what another machine has written.
            for tail in left:
                if tail.is_open:
                    tail.replaced(anew=True)
        while left:
            close = len(left) > self._most_open
            more = []
            for tail in left:
                block, read = tail.read()
                written = tail.written
                if not read:
                    block += tail.finish()
                else:
                    more.append(tail)
                    if close:
                        tail.close()
                if block:
                    self.moved(tail)
                    yield LineBlock(tail.source, block, written)
            left = more

    def _look(self, *, final: bool, first: bool = False) -> Iterator[LineBlock]:
        for source in self.discover(final):
            if source.path in self._tails:
                continue
            yield from self._attempts_before(source)
            tail = self._tails[source.path] = Tail(source, raw=self.raw)
            self._newest.setdefault(source.run_key, _Newest()).tails.append(tail)
            tail.quiet_since = time.monotonic()
            self._hot.append(tail)
            if self.begin is not None and first:
                self.begin(tail)

    def _attempts_before(self, source: Source) -> Iterator[LineBlock]:
        """Read the earlier attempts to their ends, if ``source`` begins a new one."""
        run = self._newest.setdefault(source.run_key, _Newest())
        if source.attempt is None or source.attempt <= run.attempt:
            return
        before = run.tails if run.attempt else []
        run.attempt, run.tails = source.attempt, []
        yield from self._drain(tail for tail in before if self._tails[tail.source.path])


def descriptors() -> int:
    """Raise this process's limit of open files; return how many of them logs may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN if hard == resource.RLIM_INFINITY else min(MOST_OPEN, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    # The rest is for files that are read once, and for everything else.
    return max(16, most * 3 // 4)


@dataclass
class _Check:
    """Asks ``over`` in the background, because Slurm may take a minute to answer."""

    ask: Callable[[], bool]
    every: float
    _asked: BackgroundCall[bool] | None = None
    _due: float = 0.0
    _over: bool = False

    def over(self) -> bool:
        """Return the latest answer; False until there is one. Raises what ``over`` raised."""
        now = time.monotonic()
        seconds = 0.0
        if self._asked is None and not self._over and now >= self._due:
            self._asked, seconds = BackgroundCall(self.ask), SOON
        if self._asked is not None and self._asked.wait(seconds):
            asked, self._asked = self._asked, None
            pauses = (self.every, min(50 * asked.took, SELDOM), min(200 * asked.processor, HELD))
            self._due = now + max(pauses)
            self._over = asked.result()
        return self._over


def is_remote(path: Path, mountinfo: Path = mounts.MOUNTINFO) -> bool:
    """Check whether ``path`` lies, or will lie, on the file system of another machine.

    ``HPCRUN_STORAGE=network`` or ``local`` in the environment overrides the answer, which is False
    where ``mountinfo`` cannot be read.
    """
    override = os.environ.get("HPCRUN_STORAGE")
    if override in ("network", "local"):
        return override == "network"
    found = mounts.of(os.path.realpath(path), mounts.read(mountinfo))
    return found is not None and found.is_remote
