"""From blocks of lines to what is printed: chosen by pattern, folded over ranks, dressed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun.observe.logs.fold import Group
from hpcrun.observe.logs.fold_window import fold
from hpcrun.observe.logs.follow import descriptors
from hpcrun.observe.logs.lines import CHUNK
from hpcrun.observe.logs.log_format import Printer
from hpcrun.observe.logs.tail import Block, Source, Tail

DELAY = 0.5
WINDOW = 16 << 20
LEAST_CHUNK = 1 << 13
LEAST_WAITING = 4 << 20


@dataclass(frozen=True)
class Filter:
    """Which lines are wanted.

    Attributes
    ----------
    grep, exclude
        What a line must have, and must not have; None for no such wish.
    """

    grep: re.Pattern[str] | None = None
    exclude: re.Pattern[str] | None = None

    def keep(self, lines: list[bytes]) -> list[bytes]:
        """Those that are wanted."""
        if self.grep is not None:
            found = self.grep.search
            lines = [line for line in lines if found(line.decode("utf-8", "replace"))]
        if self.exclude is not None:
            unwanted = self.exclude.search
            lines = [line for line in lines if not unwanted(line.decode("utf-8", "replace"))]
        return lines

    def block(self, block: Block) -> Block | None:
        """The same of a block; None where no line of it is."""
        if self.grep is None and self.exclude is None:
            return block
        lines = self.keep(block.lines())
        return block._replace(data=b"\n".join(lines) + b"\n") if lines else None


ALL = Filter()


class Presenter:
    """Turns blocks, as they come, into what is printed.

    Parameters
    ----------
    printer
        How lines are dressed.
    chosen
        Which lines are wanted.
    ranks
        Gives the ranks of a source's run that may be shown; what they write alike within half a
        second is told once. None folds nothing.
    """

    def __init__(
        self,
        printer: Printer,
        chosen: Filter = ALL,
        ranks: Callable[[Source], Collection[int]] | None = None,
    ) -> None:
        self._printer, self._chosen, self._ranks = printer, chosen, ranks
        # By an attempt's directory.
        self._groups: dict[Path, Group | None] = {}
        self._waiting: dict[Path, tuple[Source, Group]] = {}
        self._fed: dict[Path, int] = {}

    def block(self, block: Block) -> bytes:
        """What is printed at once of a block."""
        kept = self._chosen.block(block)
        if kept is None:
            return b""
        source = kept.source
        mark = self._printer.new_attempt(source)
        before = b"" if mark is None else self._rest_of_run(source) + mark
        group = self._group(source)
        if group is None or source.rank is None:
            return before + self._printer.format(kept)
        key = source.path.parent
        group.feed(source.rank, kept.lines(), time.monotonic())
        self._waiting[key] = (source, group)
        self._fed[key] = self._fed.get(key, 0) + len(kept.data)
        if self._fed[key] < max(LEAST_WAITING, 2 * CHUNK * group.ranks.bit_count()):
            return before
        # So much at once is no news: it was there already.
        self._fed[key] = 0
        open_ranks = frozenset(range(group.ranks.bit_length()))
        return before + self._printer.folded(source, group.take(open_ranks=open_ranks))

    def due(self) -> bytes:
        """What has waited long enough for other ranks."""
        moment = time.monotonic() - DELAY
        printed = []
        for key, (source, group) in list(self._waiting.items()):
            printed.append(self._printer.folded(source, group.take(before=moment)))
            if group.is_empty:
                del self._waiting[key]
        self._fed.clear()
        return b"".join(printed)

    def rest(self) -> bytes:
        """What still waits, at the end."""
        waiting, self._waiting = self._waiting, {}
        return b"".join(
            self._printer.folded(source, group.take()) for source, group in waiting.values()
        )

    def _rest_of_run(self, of: Source) -> bytes:
        """The same of the attempts of one run."""
        keys = [key for key in self._waiting if key.parent == of.path.parent.parent]
        rest = [self._waiting.pop(key) for key in keys]
        return b"".join(self._printer.folded(source, group.take()) for source, group in rest)

    def _group(self, source: Source) -> Group | None:
        if self._ranks is None or source.stream != "worker":
            return None
        key = source.path.parent
        if key not in self._groups:
            ranks = self._ranks(source)
            group = None
            if len(ranks) > 1:
                group = Group()
                for rank in ranks:
                    group.join(rank)
            self._groups[key] = group
        return self._groups[key]


def read(
    sources: Sequence[Source],
    printer: Printer,
    chosen: Filter = ALL,
    *,
    begin: Callable[[Tail], object] | None = None,
    fold: bool = True,
    raw: bool = False,
) -> Iterator[bytes]:
    """What is printed of files as they are now, run by run, attempt by attempt.

    Parameters
    ----------
    begin
        Called with each file, to begin elsewhere than at its beginning.
    fold
        Tell what ranks of an attempt wrote alike once; takes memory for 16 MiB of lines at a time,
        or for 8 KiB and a line of each rank. Otherwise one file comes after another.
    raw
        Leave carriage returns and broken encodings as they are.
    """
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
            parts = _alone(tails.popitem()[1], printer, chosen)
        else:
            parts = _folded(tails, printer, chosen, close=len(tails) > most_open)
        for part in filter(None, parts):
            yield (printer.new_attempt(group[0]) or b"") + part


def _alone(tail: Tail, printer: Printer, chosen: Filter) -> Iterator[bytes]:
    read = 1
    while read:
        data, read = tail.read()
        written = tail.written
        data = data if read else data + tail.finish()
        kept = chosen.block(Block(tail.source, data, written)) if data else None
        if kept is not None:
            yield printer.format(kept)


def _folded(
    tails: dict[int, Tail], printer: Printer, chosen: Filter, *, close: bool
) -> Iterator[bytes]:
    size = min(CHUNK, max(LEAST_CHUNK, WINDOW // len(tails)))
    source = next(iter(tails.values())).source
    left = dict(tails)
    window: dict[int, list[bytes]] = {rank: [] for rank in tails}
    wanted = size // 128
    while left or any(window.values()):
        for rank, tail in list(left.items()):
            if len(window[rank]) >= wanted:
                continue
            data, read = tail.read(size)
            if not read:
                data += tail.finish()
                del left[rank]
            elif close:
                tail.close()
            if data:
                window[rank] += chosen.keep(data[:-1].split(b"\n"))
        told, window = fold(window, frozenset(left))
        yield printer.folded(source, told)
