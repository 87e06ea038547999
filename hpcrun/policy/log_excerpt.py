"""The lines at a log's end that tell why its program ended.

Pure, of bytes that anybody may have written. A carriage return overwrites its line, as on a
terminal. Updates of a progress bar count as one line, also where each is a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpcrun.shared_dataclass import dataclass
from hpcrun.text import shortened, signal_name

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
# Rich draws it into a box, without the colon.
_TRACEBACK = b"Traceback (most recent call last)"
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


def visible_part(line: bytes) -> bytes:
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
    cause = _cause(lines, _last_report(lines))
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


@dataclass(frozen=True)
class LoggedEnd:
    """The end of a program, as far as its log tells it; None where it does not.

    Of a launcher (torchrun, accelerate, DeepSpeed's, a shell) that reports the end of a process
    that it started, the end of that one.
    """

    exception: str | None = None
    message: str | None = None
    exit_code: int | None = None
    """The exit code of a launcher's process."""
    signal: str | None = None
    """The name of the signal that ended a launcher's process."""


def end(data: bytes) -> LoggedEnd:
    """Return the end of a program, as the last bytes of its log tell it.

    An exception counts if a launcher's report follows, or little but what trackers say at an end:
    one that was printed long before may have been handled.
    """
    lines = _apart(folded(data)) if data else []
    told = _last_report(lines)
    cause = _cause(lines, told)
    if told is not None and cause is not None and _TRACEBACK in lines[cause.start]:
        # A script ends its helpers, too, once its program has ended.
        outweighs = cause.start > told.at or told.signal == "SIGTERM"
        told = None if outweighs and not _is_launchers(lines, cause) else told
    if told is not None and told.signal:
        return LoggedEnd(exit_code=told.exit_code, signal=told.signal)
    code = told.exit_code if told else None
    if cause is None or code not in (None, 1) or _is_launchers(lines, cause):
        return LoggedEnd(exit_code=code)
    after = [line for line in lines[cause.stop :] if not _EPILOGUE.match(line)]
    if len(after) >= LINES and told is None and not _LAUNCHER.search(b"\n".join(after)):
        return LoggedEnd()
    line = lines[cause.stop - 1].removeprefix(_before(lines[cause.start]))
    found = _RAISED.match(line.decode(errors="replace"))
    if found is None or not (len(cause) > 1 or found[1] in _OF_SYNTAX):
        return LoggedEnd(exit_code=code)
    return LoggedEnd(found[1], found[2] or "", code)


_RAISED = re.compile(r"(?:\[[^\]]{1,20}\]: )?(?:[^\W\d]\w*\.)*([^\W\d]\w*)(?:: (.*))?$")
# These have no traceback.
_OF_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
# What is said once all is over: by trackers, by torch of process groups that nobody destroyed.
_EPILOGUE = re.compile(rb"\s*$|wandb: |\[rank\d+\]:\[W|[WEI]\d{4} [\d:.]+ +\d+ |\s*\x1b\[0m$")


@dataclass(frozen=True)
class _Report:
    """A launcher's report of the process that failed first; ``at`` is the line where it begins."""

    at: int
    exit_code: int | None
    signal: str | None
    rank: int | None = None


# torchrun's; of DeepSpeed's launcher, accelerate, torch's and Lightning's processes; make's but 2.
_ROOT_CAUSE = b"Root Cause (first observed failure):"
_ROOT_RANK = re.compile(rb"\s*rank +: (\d+) ")
_ROOT_CODE = re.compile(rb"\s*exitcode +: (-?\d+) ")
_CODE_TOLD = re.compile(
    rb"\[launch\.py:\d+:\w+\] .* exits with return code = (?P<code>-?\d+)$"
    rb"|Child process with PID \d+ terminated with code (?P<code_2>-?\d+)\."
    rb"|subprocess\.CalledProcessError: .*returned non-zero exit status (?P<code_3>\d+)\.$"
    rb"|subprocess\.CalledProcessError: .*died with <Signals\.(?P<signal>SIG\w+): \d+>\.$"
    rb"|ProcessExitedException: process \d+ terminated with signal (?P<signal_2>SIG\w+)$"
    rb"|ProcessExitedException: process \d+ terminated with exit code (?P<code_4>\d+)$"
    rb"|srun: error: \S+: tasks? [\d,-]+: Exited with exit code (?P<code_5>\d+)$"
    rb"|srun: error: \S+: tasks? [\d,-]+: (?P<word>[A-Z][\w ]*?)(?: \(core dumped\))?$"
    rb"|\bline \d+: +\d+ (?P<word_2>[A-Z][a-z ]+?) +(?:\(core dumped\) +)?\S"
    rb"|make\S*: \*\*\* \[.*\] (?:Error (?P<code_6>(?!2\b)\d+)|(?P<word_3>[A-Z][a-z]+(?: [a-z]+)*))"
    rb"|.*exited on signal (?P<number>\d+)\b"
)
_WORDS = {
    "Killed": "SIGKILL", "Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT",
    "Bus error": "SIGBUS", "Illegal instruction": "SIGILL", "Floating point exception": "SIGFPE",
    "Terminated": "SIGTERM", "Out Of Memory": "SIGKILL",
}  # fmt: skip
# Lines of torchrun's report on one process.
_OF_ONE = 12


def _last_report(lines: Sequence[bytes]) -> _Report | None:
    """Return the last report of a launcher at a log's end; None without one.

    Processes that were asked to leave (SIGTERM) are no cause where another one ended otherwise.
    """
    asked: _Report | None = None
    others = 0
    for index in range(len(lines) - 1, -1, -1):
        told = _report_at(lines, index)
        if told is not None and told.signal != "SIGTERM":
            return told
        asked = asked or told
        others += told is None and not _EPILOGUE.match(lines[index])
        if others >= LINES:
            break
    return asked


def _report_at(lines: Sequence[bytes], index: int) -> _Report | None:
    """Return the report that a line belongs to; None if it is no launcher's."""
    line = lines[index]
    if _ROOT_CAUSE in line:
        report = lines[index + 1 : index + _OF_ONE]
        code, rank = (
            next((int(found[1]) for one in report if (found := pattern.match(one))), None)
            for pattern in (_ROOT_CODE, _ROOT_RANK)
        )
        begin = _begin(lines, index)
        return None if code is None else _Report(begin, *_code_and_signal(code), rank)
    if len(line) > 1 << 16 or not (found := _CODE_TOLD.search(line)):
        return None
    begin = _begin(lines, index)
    if b"CalledProcessError" in line and not _is_launchers(lines, range(begin, index + 1)):
        return None
    name, value = next((key, text) for key, text in found.groupdict().items() if text is not None)
    name, text = name.partition("_")[0], value.decode(errors="replace")
    if name == "word":
        return _Report(begin, None, _WORDS[text]) if text in _WORDS else None
    if name == "signal":
        return _Report(begin, None, text)
    return _Report(begin, *_code_and_signal(-int(text) if name == "number" else int(text)))


def _code_and_signal(code: int) -> tuple[int | None, str | None]:
    return (code, None) if code >= 0 else (None, signal_name(-code))


def _begin(lines: Sequence[bytes], index: int) -> int:
    """Return the first line of a launcher's report that has this one: of its own traceback."""
    for first in range(index, max(-1, index - 100), -1):
        if _TRACEBACK in lines[first] and _is_launchers(lines, range(first, index + 1)):
            return first
    while index and b"[launch.py:" in lines[index - 1]:
        index -= 1
    return index


# The line before the traceback of what ended nothing.
_HARMLESS = re.compile(rb"Exception ignored |--- Logging error ---")
# Modules of launchers, in their tracebacks.
_LAUNCHER = re.compile(
    rb"ChildFailedError|ProcessExitedException|/torch/distributed/(?:run|launch)\b"
    rb"|/accelerate/commands/|/deepspeed/launcher/"
)


def _is_launchers(lines: Sequence[bytes], block: range) -> bool:
    """Check whether a traceback is that of a launcher, which tells the end of its child."""
    return _LAUNCHER.search(b"\n".join(lines[block.start : block.stop])) is not None


def _before(header: bytes) -> bytes:
    """Return the prefix of each line of a traceback, such as torch's "[rank0]: "."""
    before, found, _ = header.partition(_TRACEBACK)
    if not found:
        return b""
    # In torchrun's report the lines after the first are indented.
    return b"  " if before.strip() == b"traceback :" else before


def _cause(lines: Sequence[bytes], told: _Report | None) -> range | None:
    """Return the place of the last traceback; else of the last line that names an error.

    Launchers end with a traceback of their own after that of their child, and say which of several
    ranks failed first.
    """
    first = None if told is None or told.rank is None else b"[rank%d]: " % told.rank
    found: range | None = None
    own: range | None = None
    for index in range(len(lines) - 1, -1, -1):
        if _TRACEBACK not in lines[index] or (index and _HARMLESS.match(lines[index - 1])):
            continue
        before = _before(lines[index])
        # torch.distributed puts "[rank0]: " before each line.
        end = index + 1
        while end < len(lines) and _inside(lines[end], before):
            end += 1
        here = range(index, min(end + 1, len(lines)))
        if _is_launchers(lines, here):
            own = own or here
        elif first is None or before == first:
            return here
        else:
            found = found or here
    if found is not None or own is not None:
        return found or own
    for index in range(len(lines) - 1, -1, -1):
        if len(lines[index]) <= 1 << 16 and _ERROR.search(lines[index]):
            return range(index, index + 1)
    return None


def _inside(line: bytes, before: bytes) -> bool:
    """Check whether a line belongs to a traceback whose lines begin with ``before``.

    Those of Rich begin with a box, loguru's with ``> File``.
    """
    return line.removeprefix(before)[:1] in (b" ", b"\t", b"", b"\xe2", b">")
