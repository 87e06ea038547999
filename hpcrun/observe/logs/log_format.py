"""The format of printed log lines: prefixes, colours, times, JSON."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from hpcrun.errors import BrokenFile
from hpcrun.observe.logs.fold import Folded
from hpcrun.observe.logs.tail import LineBlock, Source
from hpcrun.observe.read.selection import Selected
from hpcrun.state import ledger
from hpcrun.text import listed, one_line, ranges

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
            shown = self._dressed(self._prefix(source), source.run, source.rank)
            prefix = self._prefixes[source] = shown
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
        mine = attempts.get(source.attempt or 0)
        nodes = mine.nodes if mine else None
        begins = f"attempt {source.attempt}"
        if nodes:
            begins += f" on {listed(nodes, 4, rest=', …')}"
        before = attempts.get(last)
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
