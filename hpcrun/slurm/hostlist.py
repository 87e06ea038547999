"""Slurm's lists of numbers and of node names: ``0-3,7`` and ``n[1-3],m7``."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from hpcrun.errors import HpcrunError
from hpcrun.text import shortened

# Of a list that is written out: more than any cluster has nodes, or an array elements.
MOST = 1_000_000
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?(?::([0-9]{1,18}))?")
_PART = re.compile(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_SEPARATORS = re.compile(r"[\s,]*")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def parse_ranges(text: str, *, strides: bool = False) -> list[range]:
    """Return one range per part of ``0-3,7``, in that order; one that runs backwards is empty.

    ``strides`` accepts ``0-8:4``, every fourth. Raises ValueError if the text is no such list.
    """
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match or (match[3] and not strides):
            shown = shortened(text, 200)
            raise ValueError(f"{shown!r} is not a list of numbers and ranges such as 0,4-7")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or 1))
    return found


def check_size(spans: Sequence[range]) -> None:
    """Raise ValueError if ranges have more than `MOST` numbers."""
    if sum(map(len, spans)) > MOST:
        raise ValueError(f"these are more than {MOST:,} numbers")


def write_out(spans: Sequence[range]) -> list[int]:
    """Return the numbers of ranges; raise ValueError for more than `MOST`."""
    check_size(spans)
    return [number for span in spans for number in span]


def expand(nodelist: str) -> tuple[str, ...]:
    """Return the names of the nodes of ``n[1-3],rack[0-1]n[08-11]``, in Slurm's order.

    Raises HpcrunError if the list is malformed.
    """
    names: list[str] = []
    try:
        if _SEPARATORS.fullmatch(_PART.sub("", nodelist)) is None:
            raise ValueError
        for part in _PART.findall(nodelist):
            words = _BRACKETS.split(part)
            # Every other one stood in brackets.
            choices = [_numbers(word) if at % 2 else [word] for at, word in enumerate(words)]
            check_size([range(len(names)), range(math.prod(map(len, choices)))])
            names += map("".join, itertools.product(*choices))
    except ValueError:
        shown = shortened(nodelist, 200)
        raise HpcrunError(f"the node list {shown!r} is not understood") from None
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ``08-11,13``, as wide as each range begins."""
    spans = parse_ranges(ranges)
    if not all(spans):
        raise ValueError
    check_size(spans)
    widths = (len(text.partition("-")[0]) for text in ranges.split(","))
    return [
        f"{number:0{width}d}" for width, span in zip(widths, spans, strict=True) for number in span
    ]


def expand_job_id(text: str) -> list[str]:
    """Return one id per element of ``123``, ``123_4`` or ``123_[4,6-9%2]``; none for a step.

    ``123+0``, the first part of a heterogeneous job, has the id ``123``; its further parts have
    none, nor has what is no job's id.
    """
    text = text.removesuffix("+0")
    match = _ELEMENTS.fullmatch(text)
    if not match:
        return [text] if _JOB_ID.fullmatch(text) else []
    try:
        indices = write_out(parse_ranges(match[2].strip(","), strides=True))
    except ValueError:
        return []
    return [f"{match[1]}_{index}" for index in indices]


_ELEMENTS = re.compile(r"([0-9]{1,18})_\[([0-9,:-]+)(?:%[0-9]+)?\]")
_JOB_ID = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,18})?")
