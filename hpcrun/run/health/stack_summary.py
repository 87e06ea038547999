"""What the ranks of a run that hangs are doing, and which of them holds up the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from hpcrun.run.health.progress import COLLECTIVE

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python3[.\d]*)/|^<|/hpcrun/run/")


@dataclass(frozen=True)
class ThreadPosition:
    """Where a rank's main thread is.

    Attributes
    ----------
    call
        The function that it is in.
    own
        The innermost line that is no library's, such as ``train.py:41 (read_batch)``; empty where
        there is none.
    collective
        It waits for other ranks.
    """

    call: str
    own: str
    collective: bool

    def __str__(self) -> str:
        return f"{self.own}, in {self.call}" if self.own else self.call


def place(text: str) -> ThreadPosition | None:
    """Where the main thread is, of what `faulthandler` wrote; None where it does not say."""
    for section in reversed(re.split(r"(?m)^(?:Current t|T)hread .*$", text)):
        frames = [match.groupdict() for match in map(_FRAME.match, section.splitlines()) if match]
        if not frames or any(frame["function"] == "_bootstrap_inner" for frame in frames):
            continue
        own = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), None)
        where = ""
        if own is not None:
            where = f"{PurePath(own['file']).name}:{own['line']} ({own['function']})"
        waits = any(COLLECTIVE.search(frame["file"]) for frame in frames)
        return ThreadPosition(frames[0]["function"], where, waits)
    return None


def culprit(places: Mapping[int, ThreadPosition | None], steps: Mapping[int, int]) -> int | None:
    """The one rank that holds up the others; None where that cannot be told.

    Parameters
    ----------
    places
        Rank -> where it is; None for one that could not say, as a rank that is stopped cannot.
    steps
        Rank -> finished optimizer steps.
    """
    if len(places) == 1:
        return next(iter(places))
    silent = [rank for rank, found in places.items() if found is None]
    outside = [rank for rank, found in places.items() if found and not found.collective]
    for odd in (silent, outside):
        if len(odd) == 1:
            return odd[0]
    least = min(steps.values(), default=0)
    late = [rank for rank, step in steps.items() if step == least]
    if len(late) == 1:
        return late[0]
    kinds = Counter((found.call, found.own) for found in places.values() if found)
    rare = [rank for rank, found in places.items() if found and kinds[found.call, found.own] == 1]
    return rare[0] if len(rare) == 1 and len(places) > 2 else None


def told(places: Mapping[int, ThreadPosition | None], who: int | None) -> str:
    """In words where the ranks are."""
    others = Counter(str(found) for rank, found in places.items() if rank != who and found)
    rest = f"the others wait in {others.most_common(1)[0][0]}" if others and who is not None else ""
    if who is None:
        most = f"most are in {others.most_common(1)[0][0]}" if others else ""
        return most
    found = places.get(who)
    mine = f"rank {who} is in {found}" if found else f"rank {who} does not answer"
    return "; ".join(filter(None, [mine, rest]))
