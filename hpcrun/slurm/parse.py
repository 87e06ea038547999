"""Slurm's forms of times, arrays and GPUs, and the rows that its commands print. Pure functions.

Commands are asked for named fields with a separator: the schema of ``--json`` changes with every
release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcrun.slurm.hostlist import parse_ranges, write_out

_DURATION = re.compile(
    r"(?:(?P<days>N)-(?P<dh>N)(?::(?P<dm>N)(?::(?P<ds>N))?)?"
    r"|(?P<h>N):(?P<m>N):(?P<s>N)|(?P<mm>N):(?P<ss>N)|(?P<minutes>N))".replace("N", "[0-9]{1,9}")
)
_SECONDS = re.compile("[0-9]{1,11}")
_SIZE = re.compile(r"([0-9]{1,18}(?:[.][0-9]{1,9})?)([KMGTP]?)[Bb]?")
_ABSENT = ("", "(null)", "None", "N/A", "Unknown", "NONE", "None assigned")


def parse_rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Read lines of fields between ``|``, the last of which may hold it; drop other lines."""
    split = (line.split("|", len(fields) - 1) for line in text.splitlines())
    return [dict(zip(fields, parts, strict=True)) for parts in split if len(parts) == len(fields)]


def parse_text(field: str) -> str:
    """Return a field's text, empty for Slurm's words for nothing, such as ``(null)``."""
    field = field.strip()
    return "" if field in _ABSENT else field


def parse_size(text: str) -> int:
    """Return the bytes of a size of sacct's, such as ``59136K`` or ``1.50G``; 0 for other text."""
    return round(_bytes(text.strip(), " ") or 0.0)


def megabytes(value: str | None) -> float | None:
    """Return a size in MB, which is Slurm's unit without a letter: ``62.50G``; None for others."""
    found = _bytes(value or "", "M")
    return None if found is None else found / (1 << 20)


def _bytes(text: str, unit: str) -> float | None:
    """Return the bytes of a number with a letter, or of so many of a unit; None of other text."""
    found = _SIZE.fullmatch(text)
    return float(found[1]) * 1024 ** " KMGTP".index(found[2] or unit) if found else None


def requeued_codes(settings: Mapping[str, str]) -> set[int]:
    """Return the exit codes of jobs that Slurm requeues or holds by itself, by its configuration.

    Raises ValueError for settings that are no lists of codes.
    """
    found = (parse_text(settings.get(name, "")) for name in ("RequeueExit", "RequeueExitHold"))
    return {code for text in found if text for code in write_out(parse_ranges(text))}


def parse_duration(text: str) -> int | None:
    """Return the seconds of one of Slurm's forms of a length of time; None for other text.

    Examples: ``90`` (minutes), ``90:00``, ``12:00:00``, ``2-12``, ``2-12:30``, ``2-12:30:00``.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    hours = part["days"] * 24 + part["dh"] + part["h"]
    minutes = part["dm"] + part["m"] + part["mm"] + part["minutes"]
    return hours * 3600 + minutes * 60 + part["ds"] + part["s"] + part["ss"]


def parse_time(text: str) -> float | None:
    """Return seconds since the epoch, from that number or from ISO 8601 in local time."""
    if _SECONDS.fullmatch(text):
        return float(text) or None
    import datetime  # agents need the durations alone

    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def parse_array(text: str) -> tuple[list[int], int | None] | None:
    """Return the tasks of ``--array`` and how many may run at once; None if it is not one."""
    listed, _, parallel = text.replace(" ", "").partition("%")
    try:
        tasks = write_out(parse_ranges(listed, strides=True))
        return [*dict.fromkeys(tasks)], int(parallel) if parallel else None
    except ValueError:
        return None


def array_size(settings: Mapping[str, str]) -> int | None:
    """Return above which index, and number of tasks, Slurm refuses an array; None if it is unknown.

    ``settings`` are those of ``scontrol show config``. An index is below ``MaxArraySize``;
    ``max_array_tasks`` of ``SchedulerParameters`` limits the tasks. Where arrays are switched off
    it is 1, which makes none.
    """
    size = re.match(r"\d+", settings.get("MaxArraySize", ""))
    tasks = re.search(r"\bmax_array_tasks=(\d+)", settings.get("SchedulerParameters", ""))
    found = [int(one) for one in (size and size[0], tasks and tasks[1]) if one]
    return max(1, min(found)) if size else None


def parse_gpus(text: str) -> tuple[int, str | None] | None:
    """Return number and type of ``a100:4``, ``4`` or ``a100``; None if it is no such text."""
    found = re.fullmatch(r"(?:(\w*[A-Za-z][\w.-]*)(?::|$))?(\d{1,4})?(?:\(.*\))?", text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    return int(found[2] or 1), found[1]


def parse_gres(text: str) -> tuple[tuple[int, str | None] | None, str]:
    """Return the GPUs of ``--gres``, and what else it names."""
    request: tuple[int, str | None] | None = None
    others = []
    for part in text.split(","):
        name, colon, rest = part.strip().removeprefix("gres/").removeprefix("gres:").partition(":")
        if name.lower() == "gpu":
            request = parse_gpus(rest) if colon else (1, None)
        elif part.strip() and part.strip().lower() != "none":
            others.append(part.strip())
    return request, ",".join(others)
