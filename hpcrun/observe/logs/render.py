"""Rendering of log lines: filtered by pattern, folded over ranks, printed."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.observe.logs.fold import LineFolder, fold
from hpcrun.observe.logs.follow import descriptors
from hpcrun.observe.logs.lines import CHUNK
from hpcrun.observe.logs.log_format import Printer
from hpcrun.observe.logs.tail import LineBlock, Source, Tail
from hpcrun.policy.log_excerpt import BarFolder

DELAY = 0.5
# Seconds for a block of lines, which has some MB at most.
PATIENCE = 4.0
WINDOW = 16 << 20
LEAST_CHUNK = 1 << 13
LEAST_WAITING = 4 << 20


@dataclass(frozen=True)
class LineFilter:
    """Selects lines: those that ``grep`` finds something in and ``exclude`` does not."""

    grep: re.Pattern[str] | None = None
    exclude: re.Pattern[str] | None = None

    def keep(self, lines: list[bytes]) -> list[bytes]:
        """Return the selected lines."""
        with _in_time():
            if self.grep is not None:
                found = self.grep.search
                lines = [line for line in lines if found(line.decode("utf-8", "replace"))]
            if self.exclude is not None:
                unwanted = self.exclude.search
                lines = [line for line in lines if not unwanted(line.decode("utf-8", "replace"))]
        return lines

    def block(self, block: LineBlock) -> LineBlock | None:
        """Return a block's selected lines; None if there are none."""
        if self.grep is None and self.exclude is None:
            return block
        lines = self.keep(block.lines())
        return block._replace(data=b"\n".join(lines) + b"\n") if lines else None


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """End a search that takes too long: some expressions take years for a line that hardly fits."""

    def give_up(*_: object) -> None:
        raise UsageError(
            f"--grep or --exclude takes more than {PATIENCE:g} s for a few lines of a log",
            hint="a repeat inside a repeat, such as (a+)+, tries all ways to divide a line; "
            "write it with one repeat, or look with --raw | grep",
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


ALL = LineFilter()


@dataclass
class _Attempt:
    """An attempt whose ranks' lines are folded."""

    source: Source
    """One of its ranks."""
    folder: LineFolder = field(default_factory=LineFolder)
    fed: int = 0
    """Bytes that came since lines were last shown."""


@dataclass(eq=False)
class Presenter:
    """Turns blocks of lines, as they come, into printed bytes."""

    printer: Printer
    chosen: LineFilter = ALL
    ranks: Callable[[Source], Collection[int]] | None = None
    """Returns the ranks of a source's run that may be shown; lines that they write alike within
    half a second are folded. None folds nothing."""

    def __post_init__(self) -> None:
        # By the attempt's directory; None where nothing is folded.
        self._attempts: dict[Path, _Attempt | None] = {}
        self._waiting: dict[Path, _Attempt] = {}

    def block(self, block: LineBlock) -> bytes:
        """Return what is printed at once of a block."""
        kept = self.chosen.block(block)
        if kept is None:
            return b""
        source = kept.source
        mark = self.printer.new_attempt(source)
        before = b"" if mark is None else self._rest_of_run(source) + mark
        attempt = self._attempt(source)
        if attempt is None or source.rank is None:
            return before + self.printer.format(kept)
        folder = attempt.folder
        folder.feed(source.rank, kept.lines(), time.monotonic())
        self._waiting[source.path.parent] = attempt
        attempt.fed += len(kept.data)
        if attempt.fed < max(LEAST_WAITING, 2 * CHUNK * folder.ranks.bit_count()):
            return before
        # So much at once was written before it was followed.
        attempt.fed = 0
        open_ranks = frozenset(range(folder.ranks.bit_length()))
        return before + self.printer.folded(source, folder.take(open_ranks=open_ranks))

    def due(self) -> bytes:
        """Return the lines that have waited long enough for other ranks."""
        moment = time.monotonic() - DELAY
        printed = []
        for key, attempt in list(self._waiting.items()):
            attempt.fed = 0
            printed.append(self.printer.folded(attempt.source, attempt.folder.take(before=moment)))
            if attempt.folder.is_empty:
                del self._waiting[key]
        return b"".join(printed)

    def rest(self) -> bytes:
        """Return the lines that still wait, at the end."""
        return self._rest(list(self._waiting))

    def _rest_of_run(self, of: Source) -> bytes:
        waiting = self._waiting.items()
        return self._rest([key for key, one in waiting if one.source.run_key == of.run_key])

    def _rest(self, keys: list[Path]) -> bytes:
        rest = [self._waiting.pop(key) for key in keys]
        return b"".join(self.printer.folded(one.source, one.folder.take()) for one in rest)

    def _attempt(self, source: Source) -> _Attempt | None:
        if self.ranks is None or source.stream != "worker":
            return None
        key = source.path.parent
        if key not in self._attempts:
            ranks = self.ranks(source)
            attempt = self._attempts[key] = _Attempt(source) if len(ranks) > 1 else None
            if attempt is not None:
                for rank in ranks:
                    attempt.folder.join(rank)
        return self._attempts[key]


def read(
    sources: Sequence[Source],
    printer: Printer,
    chosen: LineFilter = ALL,
    *,
    begin: Callable[[Tail], object] | None = None,
    fold: bool = True,
    raw: bool = False,
) -> Iterator[bytes]:
    """Yield the printed lines of files as they are now, run by run, attempt by attempt.

    ``begin`` is called with each file, to choose where to begin in it. ``fold`` folds the ranks of
    an attempt, in memory for 16 MiB of lines at a time, or for 8 KiB and a line of each rank, and
    the updates of progress bars, unless lines are searched for; otherwise one file comes after
    another. ``raw`` leaves the bytes unchanged.
    """
    bars = fold and chosen.grep is None
    most_open = descriptors()
    together: dict[object, list[Source]] = {}
    for source in sources:
        folds = fold and source.stream == "worker"
        together.setdefault(source.path.parent if folds else source, []).append(source)
    for group in together.values():
        tails = {source.rank or 0: Tail(source, raw=raw) for source in group}
        if begin is not None:
            for tail in tails.values():
                begin(tail)
        if len(tails) == 1:
            parts = _alone(tails.popitem()[1], printer, chosen, bars)
        else:
            parts = _folded(tails, printer, chosen, bars, close=len(tails) > most_open)
        for part in filter(None, parts):
            yield (printer.new_attempt(group[0]) or b"") + part


def _alone(tail: Tail, printer: Printer, chosen: LineFilter, bars: bool) -> Iterator[bytes]:
    read = 1
    folder = BarFolder() if bars else None
    while read:
        data, read = _next(tail, folder)
        kept = chosen.block(LineBlock(tail.source, data, tail.written)) if data else None
        if kept is not None:
            yield printer.format(kept)


def _next(tail: Tail, folder: BarFolder | None, size: int = CHUNK) -> tuple[bytes, int]:
    """Return the next whole lines, and 0 where they are the last ones."""
    data, read = tail.read(size)
    if not read:
        data += tail.finish()
    if folder is not None:
        data = folder.feed_block(data)
        if not read:
            data += b"".join(line + b"\n" for line in folder.flush())
    return data, read


def _folded(
    tails: dict[int, Tail], printer: Printer, chosen: LineFilter, bars: bool, *, close: bool
) -> Iterator[bytes]:
    size = min(CHUNK, max(LEAST_CHUNK, WINDOW // len(tails)))
    source = next(iter(tails.values())).source
    left = dict(tails)
    window: dict[int, list[bytes]] = {rank: [] for rank in tails}
    folders = {rank: BarFolder() if bars else None for rank in tails}
    wanted = size // 128
    while left or any(window.values()):
        for rank, tail in list(left.items()):
            if len(window[rank]) >= wanted:
                continue
            data, read = _next(tail, folders[rank], size)
            if not read:
                del left[rank]
            elif close:
                tail.close()
            if data:
                window[rank] += chosen.keep(data[:-1].split(b"\n"))
        folded, window = fold(window, frozenset(left))
        yield printer.folded(source, folded)
