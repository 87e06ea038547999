"""Summary of the stacks of a hang: where ranks are, and which is to blame."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from hpcrun.run.health.progress import COLLECTIVE

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
# Paths that are no code of the user's: libraries, and the package that this room is in.
_OURS = "/".join(__name__.split(".")[:2])
_MESSAGES = re.compile(rf"/{_OURS}/rank/(?:peer_messages|collectives)[.]py$")
_LIBRARY = re.compile(rf"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<|/{_OURS}/")


@dataclass(frozen=True)
class ThreadPosition:
    """The position of a rank's main thread."""

    call: str
    """The function that it is in."""
    own: str
    """The innermost line outside libraries, such as ``train.py:41 (read_batch)``; may be empty."""
    collective: bool
    """It waits for other ranks."""

    def __str__(self) -> str:
        return f"{self.own}, in {self.call}" if self.own else self.call


def main_thread(text: str) -> list[str]:
    """Return the main thread's lines of `faulthandler`'s text, the most recent call first."""
    for section in reversed(re.split(r"(?m)^(?:Current t|T)hread .*$", text)):
        lines = [line for line in section.splitlines() if _FRAME.match(line)]
        if lines and not any(line.endswith(" in _bootstrap_inner") for line in lines):
            return lines
    return []


def position(text: str) -> ThreadPosition | None:
    """Return the main thread's position from `faulthandler`'s text; None if it is not there."""
    if lines := main_thread(text):
        frames = [match.groupdict() for match in map(_FRAME.match, lines) if match]
        own = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), None)
        where = ""
        if own is not None:
            where = f"{PurePath(own['file']).name}:{own['line']} ({own['function']})"
        waits = any(COLLECTIVE.search(frame["file"]) for frame in frames)
        # In one collective some ranks send and others receive.
        calls = (frame for frame in frames if not _MESSAGES.search(frame["file"]))
        return ThreadPosition(next(calls, frames[0])["function"], where, waits)
    return None


def culprit(positions: Mapping[int, ThreadPosition | None], steps: Mapping[int, int]) -> int | None:
    """Return the one rank that holds up the others; None if unknown.

    A rank that could not write its stacks, such as one that is stopped, has no position.
    """
    if len(positions) == 1:
        return next(iter(positions))
    silent = [rank for rank, found in positions.items() if found is None]
    outside = [rank for rank, found in positions.items() if found and not found.collective]
    for odd in (silent, outside):
        if len(odd) == 1:
            return odd[0]
    least = min(steps.values(), default=0)
    late = [rank for rank, step in steps.items() if step == least]
    if len(late) == 1:
        return late[0]
    kinds = Counter((found.call, found.own) for found in positions.values() if found)
    rare = [
        rank for rank, found in positions.items() if found and kinds[found.call, found.own] == 1
    ]
    return rare[0] if len(rare) == 1 and len(positions) > 2 else None


def describe(positions: Mapping[int, ThreadPosition | None], who: int | None) -> str:
    """Return where the ranks are in words, with ``who`` apart from the others."""
    others = Counter(str(found) for rank, found in positions.items() if rank != who and found)
    common = others.most_common(1)[0][0] if others else ""
    if who is None:
        return common and f"most are in {common}"
    found = positions.get(who)
    mine = f"rank {who} is in {found}" if found else f"rank {who} does not answer"
    return f"{mine}; the others wait in {common}" if common else mine
