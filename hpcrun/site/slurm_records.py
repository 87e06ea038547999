"""Records and quantities as Slurm prints them. Pure; a word that is not understood is no limit."""

from __future__ import annotations

import re

from hpcrun.errors import HpcrunError
from hpcrun.slurm.hostlist import expand
from hpcrun.slurm.parse import megabytes as megabytes

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)")
_NOTHING = ("", "(null)", "N/A", "NONE", "None", "UNLIMITED", "INFINITE")
_COUNT = re.compile(r"\d+")


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of ``scontrol --oneliner``: ``{"NodeName": "n1", …}``.

    A value goes to the next field's name: a node's ``Reason`` has blanks.
    """
    return dict(_FIELD.findall(line))


def settings(lines: list[str]) -> dict[str, str]:
    """Return the settings of ``scontrol show config``, whole values: ``SelectType`` -> value."""
    split = (line.partition("=") for line in lines)
    return {name.strip(): value.strip() for name, sign, value in split if sign}


def words(value: str | None) -> tuple[str, ...]:
    """Return the parts of a list with commas; empty for Slurm's words for nothing."""
    if value is None or value in _NOTHING:
        return ()
    return tuple(part for part in value.split(",") if part)


def count(value: str | None) -> int | None:
    """Return a whole number; None for UNLIMITED and what is no number."""
    return int(value) if value and _COUNT.fullmatch(value) else None


def resources(value: str | None) -> dict[str, float]:
    """Return the amounts of ``cpu=32,mem=62.50G,node=4,gres/gpu:a100=8``; memory in MB."""
    found = {}
    for part in words(value):
        name, sign, amount = part.rpartition("=")
        number = megabytes(amount) if name == "mem" else _number(amount)
        if sign and number is not None:
            found[name] = number
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text.rstrip("KMGTP"))
    except ValueError:
        return None
    factor = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1:], 1.0)
    return number * factor if number >= 0 else None


def gpus(gres: str | None) -> dict[str, int]:
    """Return type -> GPUs of a node's ``Gres=gpu:a100:8(S:0-1),nvme:1``; type "" if it has none."""
    found: dict[str, int] = {}
    for part in words(re.sub(r"\([^)]*\)", "", gres or "")):
        name, *rest = part.split(":")
        if name != "gpu":
            continue
        amount = count(rest[-1]) if rest else None
        kind = rest[0] if len(rest) > 1 or (rest and amount is None) else ""
        found[kind] = found.get(kind, 0) + (1 if amount is None else amount)
    return found


def nodes(value: str | None) -> tuple[str, ...]:
    """Return the names of ``n[1-4],m7``; empty for nothing and for what is no list."""
    try:
        return expand(value) if value and value not in _NOTHING else ()
    except HpcrunError:
        return ()


# What sinfo(1) says of the characters that may end a node's state.
_MARKS = {
    "*": "NOT_RESPONDING",
    "$": "MAINT",
    "-": "PLANNED",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
}


def node_state(text: str) -> frozenset[str]:
    """Return a node's state and flags, such as ``IDLE*+CLOUD``; a mark is the flag that it means.

    A node that is ``IDLE*`` is not idle: it does not answer.
    """
    found = set()
    for word in text.split("+"):
        plain = word.rstrip("".join(_MARKS))
        found |= {plain, *(_MARKS[mark] for mark in word[len(plain) :])}
    return frozenset(found)
