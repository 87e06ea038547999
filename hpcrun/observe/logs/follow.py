"""Follow many growing files by polling: works on NFS and Lustre, where inotify sees nothing.

::

    follower = Follower(discover=lambda final: sources, over=lambda: job_is_done)
    for block in follower.blocks():
        sys.stdout.buffer.write(block.data)

Files that grow keep their descriptor and are looked at in every turn. Those that have been quiet
for a while are closed and looked at in turns, so many a second and no more, whatever their number.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcrun.observe.background import Beside
from hpcrun.observe.logs.tail import FULL, Block, Source, Tail

CHECK = 3.0
SOON = 0.05
MOST_OPEN = 4096
# Seconds for which nothing is looked at, printed or asked, at most.
SLICE = 0.5
# Seconds between two questions whether all is over, where an answer takes long.
SELDOM = 60.0
# The same, where the answers of very many runs take long to read, and lines wait for that.
HELD = 20.0


@dataclass(frozen=True)
class Pace:
    """How often is looked.

    Attributes
    ----------
    interval
        Seconds between looks at files that grow.
    hot_looks, cold_looks
        How many looks a second there are at most, at files that grow and at quiet ones.
    cold
        Seconds between looks at a quiet file, where their number allows it.
    linger
        How many seconds a file that does not grow is looked at like one that does.
    discover
        Seconds between looks for new files.
    reopen
        Open files again for each look, as clients of network file systems want it.
    burst
        How many blocks are read of a file before it is another's turn.
    """

    interval: float = 0.1
    hot_looks: float = 20_000
    cold_looks: float = 1_500
    cold: float = 1.0
    linger: float = 10.0
    discover: float = 1.0
    reopen: bool = False
    burst: int = 1


LOCAL = Pace()
REMOTE = Pace(
    interval=0.25, hot_looks=100, cold_looks=25, cold=2.0, discover=2.0, reopen=True, burst=16
)


class Follower:
    """Yields what files gain as they grow, and what files hold as they appear.

    Parameters
    ----------
    discover
        Gives the sources of now; called again and again. Its argument is True the last time, when
        everything is over. A source that was given once is followed to the end.
    over
        Whether nothing more will be written; asked at most every ``check`` seconds, and more rarely
        when the answer is slow.
    ended
        Whether nothing more will be written to one source.
    begin
        Called with each file that exists at the start, to begin elsewhere than at its beginning.
    idle
        Called before each pause, when all lines there are have been given: the time to flush.
    pace
        `LOCAL`, `REMOTE` or another.
    raw
        Leave carriage returns and broken encodings as they are.
    """

    def __init__(
        self,
        discover: Callable[[bool], Iterable[Source]],
        over: Callable[[], bool] = lambda: False,
        *,
        ended: Callable[[Source], bool] = lambda source: False,
        begin: Callable[[Tail], object] | None = None,
        idle: Callable[[], object] = lambda: None,
        pace: Pace = LOCAL,
        check: float = CHECK,
        raw: bool = False,
    ) -> None:
        self._discover = discover
        self._over = over
        self._ended = ended
        self._begin = begin
        self._idle = idle
        self._pace = pace
        self._check = check
        self._raw = raw
        self._tails: dict[Path, Tail | None] = {}
        self._newest: dict[Path, int] = {}
        self._of_run: dict[Path, list[Tail]] = {}
        self._hot: list[Tail] = []
        self._cold: deque[Tail] = deque()
        self._looks = 0.0
        self._is_first = True
        self._most_open = descriptors()

    def blocks(self) -> Iterator[Block]:
        """Yield lines in the order of each file, until all is over and read.

        What is there of an attempt comes before the first line of a later one. Closing the
        generator closes every file.
        """
        try:
            yield from self._look(final=False, first=True)
            yield from self._watch()
            yield from self._look(final=True)
            yield from self._drain(filter(None, list(self._tails.values())))
        finally:
            for tail in filter(None, self._tails.values()):
                tail.close()

    def _watch(self) -> Iterator[Block]:
        check = _Check(self._over, self._check)
        pace = self._pace
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
            self._idle()
            if not more or pace.reopen:
                looks = 0 if pace.reopen else len(self._hot)
                self._pause(turn + max(pace.interval, looks / pace.hot_looks), check)

    def _pause(self, until: float, check: _Check) -> None:
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE))
            if left > SLICE:
                self._idle()
                if check.over():
                    return

    def _read_hot(self, now: float, paths_too: bool) -> Generator[Block, None, bool]:
        """What those that grow have gained; returns whether there is more at once.

        On a network storage some of them in each turn: it would feel a burst.
        """
        more = False
        close = len(self._hot) > self._most_open
        anew = self._pace.reopen
        first, self._is_first = self._is_first, False
        some = len(self._hot)
        if anew and not first:
            some = max(1, int(self._pace.hot_looks * self._pace.interval))
        looked, hot = self._hot[:some], self._hot[some:]
        for tail in looked:
            replaced = paths_too and tail.is_open and tail.replaced(anew=anew)
            read = yield from self._read(tail)
            if first and read < FULL:
                tail.quiet_since = now - tail.age()
            elif read:
                tail.quiet_since = now
                more = more or read >= FULL
            if replaced:
                yield from self._drain([tail])
                tail.restart()
            cool = now - tail.quiet_since > self._pace.linger
            if close or cool:
                tail.close()
            (self._cold if cool else hot).append(tail)
        self._hot = hot
        return more

    def _read(self, tail: Tail) -> Generator[Block, None, int]:
        """What one file gained, in so many reads at most; returns what the last one brought."""
        read, times = FULL, self._pace.burst
        while times and read >= FULL:
            times -= 1
            block, read = tail.read()
            if block:
                yield Block(tail.source, block, tail.written)
        return read

    def _read_cold(self, now: float, passed: float) -> Iterator[Block]:
        """What as many quiet files as are due have gained."""
        a_second = min(len(self._cold) / self._pace.cold, self._pace.cold_looks)
        self._looks = min(self._looks + passed * a_second, float(len(self._cold)))
        while self._looks >= 1 and self._cold:
            self._looks -= 1
            tail = self._cold.popleft()
            if self._is_done(tail.source):
                yield from self._drain([tail])
                self._tails[tail.source.path] = None
            elif not self._pace.reopen and not tail.changed():
                self._cold.append(tail)
            elif (yield from self._read(tail)):
                tail.quiet_since = now
                self._hot.append(tail)
            else:
                tail.close()
                self._cold.append(tail)

    def _is_done(self, source: Source) -> bool:
        newest = self._newest.get(source.run_key, 0)
        return (source.attempt or newest) < newest or self._ended(source)

    def _drain(self, tails: Iterable[Tail]) -> Iterator[Block]:
        """All that these files hold, some of each in turn; closes them."""
        left = list(tails)
        if self._pace.reopen:
            # A descriptor may not know yet what another machine has written.
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
                    yield Block(tail.source, block, written)
            left = more

    def _look(self, *, final: bool, first: bool = False) -> Iterator[Block]:
        for source in self._discover(final):
            if source.path in self._tails:
                continue
            yield from self._attempts_before(source)
            tail = self._tails[source.path] = Tail(source, raw=self._raw)
            self._of_run.setdefault(source.run_key, []).append(tail)
            tail.quiet_since = time.monotonic()
            self._hot.append(tail)
            if self._begin is not None and first:
                self._begin(tail)

    def _attempts_before(self, source: Source) -> Iterator[Block]:
        """The rest of the attempts before the one that begins with ``source``."""
        key = source.run_key
        newest = self._newest.get(key, 0)
        if source.attempt is None or source.attempt <= newest:
            return
        self._newest[key] = source.attempt
        before = self._of_run.get(key, [])
        if newest:
            yield from self._drain(tail for tail in before if self._tails[tail.source.path])
        self._of_run[key] = []


def descriptors() -> int:
    """How many files may be kept open, after this process's limit was raised as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN if hard == resource.RLIM_INFINITY else min(MOST_OPEN, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    # Some are for files that are looked at once, and for all else.
    return max(16, most * 3 // 4)


class _Check:
    """Asks ``over`` beside the reading of files, because Slurm may take a minute to answer."""

    def __init__(self, over: Callable[[], bool], every: float) -> None:
        self._ask, self._every = over, every
        self._asked: Beside[bool] | None = None
        self._due = 0.0
        self._over = False

    def over(self) -> bool:
        """The newest answer; False until there is one.

        Raises
        ------
        Exception
            What asking raised.
        """
        now = time.monotonic()
        seconds = 0.0
        if self._asked is None and not self._over and now >= self._due:
            self._asked, seconds = Beside(self._ask), SOON
        if self._asked is not None and self._asked.wait(seconds):
            asked, self._asked = self._asked, None
            pauses = (self._every, min(50 * asked.took, SELDOM), min(200 * asked.processor, HELD))
            self._due = now + max(pauses)
            self._over = asked.result()
        return self._over
