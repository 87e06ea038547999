"""Rendering of log lines: filtered by pattern, folded over ranks, printed."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.observe.logs.fold import Folded, LineFolder, fold
from hpcrun.observe.logs.follow import descriptors
from hpcrun.observe.logs.tail import CHUNK, LineBlock, Source, Tail
from hpcrun.observe.read.selection import Selected
from hpcrun.policy.log_excerpt import BarFolder
from hpcrun.state import ledger
from hpcrun.text import listed, one_line, ranges

DELAY = 0.5
# Seconds for a block of lines, which has some MB at most.
PATIENCE = 4.0
WINDOW = 16 << 20
LEAST_CHUNK = 1 << 13
LEAST_WAITING = 4 << 20
_COLORS = ("36", "33", "35", "32", "34", "31", "96", "93", "95", "92", "94", "91")
_MARK, _RESET = b"\x1b[1m", b"\x1b[0m"
_HIT, _NO_HIT = "\x1b[7m", "\x1b[27m"
_PREFIXES = 5_000
_FIELDS = ("experiment", "run", "attempt", "rank", "stream", "node")
# ECMA-48: CSI sequences, OSC and the like up to their terminator, and short escapes.
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
# The rest of what `hpcrun.text.visible` replaces, in UTF-8, and how these characters begin.
_ACTING = re.compile(rb"\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c|\xef\xbb\xbf")
_BEGINNINGS = (b"\xe2\x80", b"\xe2\x81", b"\xd8\x9c", b"\xef\xbb\xbf")
_COLOR = re.compile(rb"\x1b\[[0-9;:]*m")
_COLORED = re.compile("(\x1b\\[[0-9;:]*m)")
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\x1b"})


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
        before = b"" if mark is None else self.rest(source) + mark
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

    @property
    def is_empty(self) -> bool:
        """Check whether no line waits."""
        return not self._waiting

    def rest(self, of: Source | None = None) -> bytes:
        """Return the lines that still wait, of all runs or of a source's."""
        waiting = self._waiting.items()
        keys = [key for key, one in waiting if not of or one.source.run_key == of.run_key]
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


@dataclass(eq=False)
class Printer:
    """Prefixes each line with its origin.

    Escape sequences that do more than colour, and other control characters, never reach the
    terminal; without colour no escape sequence does.
    """

    selected: Sequence[Selected]
    """The runs that lines may come from; decides which parts the prefix needs."""
    _: KW_ONLY
    color: bool = False
    """Colour the prefix by run, or by rank where there is one run."""
    as_json: bool = False
    """Print JSON lines ``{experiment, run, attempt, rank, stream, node, line}`` instead."""
    raw: bool = False
    """Print the bytes unchanged, without prefixes."""
    timestamps: bool = False
    """Print before each line by when it was written, or now if it has just come; in JSON, ``time``
    in seconds."""
    highlight: re.Pattern[str] | None = None
    """Show matches in reverse, where there is colour."""

    def __post_init__(self) -> None:
        selected = self.selected
        self._experiment = len({one.experiment.directory for one in selected}) > 1
        self._run = len(selected) > 1
        self._rank = any(one.run.world_size > 1 for one in selected)
        self._ranks_wide = len(str(max((one.run.world_size for one in selected), default=1) - 1))
        self._runs_wide = len(str(max((one.run.number for one in selected), default=0)))
        self._runs = {one.paths.directory: one for one in selected}
        self._prefixes: dict[object, bytes] = {}
        self._attempts: dict[object, int] = {}

    def format(self, block: LineBlock) -> bytes:
        """Return a block as it is printed."""
        source, data, written = block
        if self.as_json:
            return self._records(block)
        if self.raw:
            return data
        prefix = self._prefixes.get(source)
        if prefix is None:
            prefix = self._dressed(self._prefix(source), source.run, source.rank)
            self._prefixes[source] = prefix
        data = self._tamed(data)
        prefix = self._time(written) + prefix
        return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n" if prefix else data

    def folded(self, source: Source, lines: Sequence[Folded]) -> bytes:
        """Return folded lines of an attempt as they are printed; ``source`` is one of its ranks."""
        if not lines:
            return b""
        prefixes, place = self._prefixes, source.path.parent
        parts = []
        texts = self._tamed(b"\n".join([line for _, line in lines]) + b"\n").split(b"\n")
        for (ranks, _), text in zip(lines, texts, strict=False):
            prefix = prefixes.get((place, ranks))
            if prefix is None:
                if len(prefixes) > _PREFIXES:
                    prefixes.clear()
                lowest = (ranks & -ranks).bit_length() - 1
                prefix = self._dressed(self._of_ranks(source, ranks), source.run, lowest)
                prefixes[place, ranks] = prefix
            parts.append(prefix + text)
        return b"\n".join(parts) + b"\n"

    def new_attempt(self, source: Source) -> bytes | None:
        """Return the heading of a run's next attempt; None if ``source`` does not begin one."""
        if source.attempt is None:
            return None
        last = self._attempts.get(source.run_key)
        if last is not None and last >= source.attempt:
            return None
        self._attempts[source.run_key] = source.attempt
        if last is None or self.as_json or self.raw:
            return b""
        text = f"--- {source.experiment}/{source.run}: {self._story(source, last)} ---"
        mark = one_line(text).encode()
        return _MARK + mark + _RESET + b"\n" if self.color else mark + b"\n"

    def _prefix(self, source: Source) -> str:
        """Return ``NAME/3 r0``, without the parts that all lines share."""
        parts = [self._name(source)]
        if source.stream == "worker":
            if self._rank:
                parts.append(f"r{source.rank:<{self._ranks_wide}}")
        else:
            parts.append(f"{source.stream} {source.node}" if source.node else source.stream)
        return " ".join(filter(None, parts))

    def _name(self, source: Source) -> str:
        if self._experiment:
            return f"{source.experiment}/{source.run}"
        return f"{source.run:>{self._runs_wide}}" if self._run else ""

    def _of_ranks(self, source: Source, mask: int) -> str:
        ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
        shown = f"r{','.join(ranges(ranks)):<{self._ranks_wide}}"
        if len(ranks) > 1:
            shown += f" ({len(ranks)})"
        return " ".join(filter(None, (self._name(source), shown)))

    def _dressed(self, prefix: str, run: int, rank: int | None) -> bytes:
        if not prefix:
            return b""
        prefix = one_line(prefix)
        if not self.color:
            return f"{prefix} | ".encode()
        color = _COLORS[(run if self._run else rank or 0) % len(_COLORS)]
        return f"\x1b[{color}m{prefix} |\x1b[0m ".encode()

    def _records(self, block: LineBlock) -> bytes:
        about = {name: getattr(block.source, name) for name in _FIELDS}
        if self.timestamps:
            about["time"] = round(block.written or time.time(), 1)
        head = json.dumps(about)[:-1]
        texts = (_quoted(line.decode("utf-8", "replace")) for line in block.lines())
        return "".join([f'{head}, "line": {text}}}\n' for text in texts]).encode()

    def _story(self, source: Source, last: int) -> str:
        """Describe which attempt begins, where, and how the one before ended."""
        one = self._runs.get(source.run_key)
        attempts: dict[int, ledger.Attempt] = {}
        # One that cannot be read tells nothing here.
        with contextlib.suppress(BrokenFile):
            attempts = {each.number: each for each in ledger.read(one.paths)} if one else {}
        mine, before = attempts.get(source.attempt or 0), attempts.get(last)
        begins = f"attempt {source.attempt}"
        if mine and mine.nodes:
            begins += f" on {listed(mine.nodes, 4, rest=', …')}"
        cause = before.cause if before else None
        if not cause:
            return begins
        return f"{begins}; attempt {last} ended: {cause.get('message') or cause.get('kind')}"

    def _time(self, written: float | None) -> bytes:
        if not self.timestamps:
            return b""
        moment = time.localtime(time.time() if written is None else written)
        return time.strftime("%Y-%m-%d %H:%M:%S ", moment).encode()

    def _tamed(self, data: bytes) -> bytes:
        """Remove everything that would do more to a terminal than show coloured text."""
        if b"\x1b" in data:
            data = _ESCAPE.sub(_if_color if self.color else b"", data)
        data = data.translate(None, _CONTROLS)
        if not data.isascii():
            data = _C1.sub(b"", data)
            if any(beginning in data for beginning in _BEGINNINGS):
                data = _ACTING.sub(b"", data)
        if self.color and (self.highlight or b"\x1b" in data):
            data = b"\n".join(map(self._colored, data.split(b"\n")))
        return data

    def _colored(self, line: bytes) -> bytes:
        if self.highlight and line:
            parts = _COLORED.split(line.decode("utf-8", "replace"))
            parts[::2] = [self.highlight.sub(_hit, part) for part in parts[::2]]
            line = "".join(parts).encode()
        return line + _RESET if b"\x1b" in line else line


def _quoted(line: str) -> str:
    """Return a line as JSON, in ASCII if that would leave something that acts on a terminal."""
    text = json.dumps(line, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(line)


def _hit(found: re.Match[str]) -> str:
    return f"{_HIT}{found[0]}{_NO_HIT}" if found[0] else ""


def _if_color(found: re.Match[bytes]) -> bytes:
    return found[0] if _COLOR.fullmatch(found[0]) else b""
