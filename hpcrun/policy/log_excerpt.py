"""The lines at a log's end that tell why its program ended.

Pure, of bytes that anybody may have written. A carriage return overwrites its line, as on a
terminal. Updates of a progress bar count as one line, also where each is a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpcrun.text import shortened

LINES = 20
# So many of them for the cause, where it is further up than the last lines.
_OF_CAUSE = 12
_LONGEST_BAR = 1_000
# tqdm's "[00:01<00:07, 11.5it/s]" and "[00:01, 11.5it/s]" at a line's end, its bar without times,
# and Keras's "12/100 ━━━━".
_BAR = re.compile(
    rb"\[\d+:\d\d(?::\d\d)?(?:<|, +[\d?.]+[^\s/]*/).*\](?:\x1b\[[0-9;]*[A-Za-z]|\s)*$"
    rb"|^[^|]*\d%\|(?:\xe2\x96[\x88-\x8f]|[#\d ])*\|[^|]{0,40}$"
    rb"|^(?:\x1b\[[0-9;]*m|\s)*\d+/(?:\d+|Unknown)(?:\x1b\[[0-9;]*m|\s)*(?:\[[=>.]|(?:\xe2\x94\x81){2})"
)
# A block of lines without any of these has no bar: most logs pass at the speed of a search.
_BRACKET = re.compile(rb"\[(?:\d+:\d\d(?::\d\d)?(?:<|, +[\d?.])|[=>.])")
_PERCENT = re.compile(rb"%[|]")
_TRACEBACK = b"Traceback (most recent call last):"
_ERROR = re.compile(
    rb"(?:Error|Exception|Interrupt)\b|\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL|[Pp]anic):"
    rb"|terminate called|Segmentation fault|core dumped|Out of memory|oom[-_ ]kill"
    rb"|command not found"
)


def is_bar(line: bytes) -> bool:
    """Check whether a line is one state of a progress bar, of tqdm or Keras."""
    return 3 < len(line) <= _LONGEST_BAR and _BAR.search(line) is not None


def _may_have_bars(block: bytes) -> bool:
    if _BRACKET.search(block) or _PERCENT.search(block):
        return True
    return not block.isascii() and b"\xe2\x94\x81" in block


def shown(line: bytes) -> bytes:
    """Return what a terminal still shows of a line that may have carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class BarFolder:
    """Folds the updates of progress bars that follow each other into the last one.

    The lines that are fed are those that a terminal shows, without their ends.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._count = 0

    def feed(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return the lines that need not wait for further ones."""
        found: list[bytes] = []
        for line in lines:
            if is_bar(line):
                self._last = line
                self._count += 1
            else:
                found += self.flush()
                found.append(line)
        return found

    def feed_block(self, block: bytes) -> bytes:
        """Return the same of a block of whole lines, each with its newline."""
        if not block or (self._last is None and not _may_have_bars(block)):
            return block
        return b"".join(line + b"\n" for line in self.feed(block[:-1].split(b"\n")))

    def flush(self) -> list[bytes]:
        """Return the bar that waits, with the number of its updates."""
        last, count = self._last, self._count
        self._last, self._count = None, 0
        if last is None:
            return []
        return [last + b"  (the last of %d updates)" % count if count > 1 else last]


def folded(data: bytes) -> list[bytes]:
    """Return the lines of a text as a terminal shows them, progress bars folded."""
    folder = BarFolder()
    found: list[bytes] = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        if b"\r" in line:
            states = line.split(b"\r")
            *before, last = [state for state in states if state.strip()] or [b""]
            # A terminal shows the last state; those before it count as updates of its bar.
            found += folder.feed([*filter(is_bar, before), last] if is_bar(last) else [last])
        else:
            found += folder.feed([line])
    return [*found, *folder.flush()]


def excerpt(data: bytes) -> list[str]:
    """Return at most `LINES` lines of a log's end, the last traceback or error among them.

    What lies between that and the last lines is left out, and counted in a line of its own.
    """
    lines = _apart(folded(data)) if data else []
    first = max(0, len(lines) - LINES)
    cause = _cause(lines)
    if cause is None or cause.stop > first:
        kept = lines[first:]
    else:
        block = lines[cause.start : cause.stop]
        if len(block) > _OF_CAUSE:
            block = [block[0], *_left_out(len(block) - _OF_CAUSE + 1), *block[2 - _OF_CAUSE :]]
        rest = LINES - len(block) - 1
        between = len(lines) - rest - cause.stop
        kept = [*block, *_left_out(between), *lines[len(lines) - rest :]]
    return [shortened(line.decode(errors="replace")) for line in kept]


def _left_out(count: int) -> list[bytes]:
    return [f"… ({count:,} lines)".encode()] if count > 0 else []


def _apart(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines, with a traceback that follows a bar on its line on one of its own."""
    found: list[bytes] = []
    for line in lines:
        bar, header, rest = line.partition(_TRACEBACK)
        found += [bar, header + rest] if header and is_bar(bar) else [line]
    return found


def raised(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return the exception that an `excerpt` ends with, and its message; None if none did.

    Of a launcher that reports the end of its child, the child's. One that was printed long before
    the end may have been handled.
    """
    log = [line.encode() for line in lines]
    cause = _cause(log)
    if cause is None:
        return None
    after = log[cause.stop :]
    if any(line.startswith("…".encode()) for line in after) and not any(map(_of_launcher, after)):
        return None
    found = _RAISED.match(log[cause.stop - 1].decode(errors="replace"))
    if found is None or not (len(cause) > 1 or found[1] in _OF_SYNTAX):
        return None
    return found[1], found[2] or ""


_RAISED = re.compile(r"(?:\[[^\]]{1,20}\]: )?(?:[^\W\d]\w*\.)*([^\W\d]\w*)(?:: (.*))?$")
# These have no traceback.
_OF_SYNTAX = ("SyntaxError", "IndentationError", "TabError")


def _of_launcher(line: bytes) -> bool:
    return b"ChildFailedError" in line or b"CalledProcessError" in line


def _cause(lines: Sequence[bytes]) -> range | None:
    """Return the place of the last traceback; else of the last line that names an error.

    Launchers (torchrun, DeepSpeed's) end with a traceback of their own after that of their child.
    """
    own: range | None = None
    for index in range(len(lines) - 1, -1, -1):
        before, found, _ = lines[index].partition(_TRACEBACK)
        if found:
            # torch.distributed puts "[rank0]: " before each line.
            end = index + 1
            while end < len(lines) and _inside(lines[end], before):
                end += 1
            here = range(index, min(end + 1, len(lines)))
            if not _of_launcher(lines[here.stop - 1]):
                return here
            own = own or here
    if own is not None:
        return own
    for index in range(len(lines) - 1, -1, -1):
        if len(lines[index]) <= 1 << 16 and _ERROR.search(lines[index]):
            return range(index, index + 1)
    return None


def _inside(line: bytes, before: bytes) -> bool:
    """Check whether a line belongs to a traceback whose lines begin with ``before``."""
    return line.removeprefix(before)[:1] in (b" ", b"\t", b"")
