"""Slurm's forms of a length of time."""

from __future__ import annotations

import re

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)|(?P<mm>\d+):(?P<ss>\d+)|(?P<minutes>\d+))"
)


def seconds(time: str) -> int | None:
    """The length of one of Slurm's time forms; None when it is no such form.

    Examples: ``90`` (minutes), ``90:00``, ``12:00:00``, ``2-12``, ``2-12:30``, ``2-12:30:00``.
    """
    match = _TIME.fullmatch(time.strip())
    if not match:
        return None
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    hours = part["days"] * 24 + part["dh"] + part["h"]
    minutes = part["dm"] + part["m"] + part["mm"] + part["minutes"]
    return hours * 3600 + minutes * 60 + part["ds"] + part["s"] + part["ss"]
