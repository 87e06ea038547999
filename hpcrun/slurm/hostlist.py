"""Slurm's lists of numbers and of node names: ``0-3,7`` and ``n[1-3],m7``."""

from __future__ import annotations

import re

from hpcrun.errors import HpcrunError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?")
_PART = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?")


def parse_ranges(text: str, *, strides: bool = False) -> list[range]:
    """Return one range per part of ``0-3,7``, in that order; one that runs backwards is empty.

    ``strides`` accepts ``0-8:4``, every fourth. Raises ValueError if the text is no such list.
    """
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match or (match[3] and not strides):
            raise ValueError(f"{text!r} is not a list of numbers and ranges such as 0,4-7")
        found.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1) or 1))
    return found


def expand(nodelist: str) -> tuple[str, ...]:
    """Return the names of the nodes of ``n[1-3],m7``, in Slurm's order.

    Raises HpcrunError if the list is malformed.
    """
    names: list[str] = []
    for part in _PART.findall(nodelist):
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            names.append(part)
            continue
        ranges, _, suffix = rest.partition("]")
        try:
            spans = zip(ranges.split(","), parse_ranges(ranges), strict=True)
        except ValueError:
            raise HpcrunError(f"the node list {nodelist!r} is not understood") from None
        for span, numbers in spans:
            width = len(span.partition("-")[0])
            names += [f"{prefix}{number:0{width}d}{suffix}" for number in numbers]
    return tuple(names)


def expand_job_id(text: str) -> list[str]:
    """Return one id per element of ``123``, ``123_4`` or ``123_[4,6-9%2]``; none for a step."""
    match = re.fullmatch(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]", text)
    if not match:
        return [text] if re.fullmatch(r"\d+(?:_\d+)?", text) else []
    spans = parse_ranges(match[2].strip(","), strides=True)
    return [f"{match[1]}_{index}" for span in spans for index in span]
