"""The sweep of a spec from an array's tasks, or from the steps of a loop."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.convert.draft.program_entry import ProgramEntry
from hpcrun.convert.draft.program_flags import typed

_SHORT = 8


@dataclass
class SweptRuns:
    """The swept keys of several starts of one program."""

    grid: dict[str, Any] = field(default_factory=dict)
    zip: dict[str, list[Any]] = field(default_factory=dict)
    in_args: dict[int, str] = field(default_factory=dict)
    """Index in ``args`` -> what it is with a key of ``config`` that is swept."""
    first: dict[str, Any] = field(default_factory=dict)
    """The value of each such key in the first run."""
    why_not: str | None = None


def sweep(entries: Sequence[ProgramEntry]) -> SweptRuns:
    """Return what differs between the starts of a program, as a grid or a zip."""
    found = SweptRuns()
    base = entries[0]
    same_shape = all(
        list(one.config) == list(base.config)
        and len(one.args) == len(base.args)
        and one.entry == base.entry
        and one.deepspeed == base.deepspeed
        and one.deepspeed_config == base.deepspeed_config
        for one in entries
    )
    if not same_shape:
        found.why_not = "they differ in more than the values of options"
        return found
    columns: dict[str, list[Any]] = {}
    for name in base.config:
        values = [typed(one.config[name]) for one in entries]
        if any(value != values[0] for value in values):
            columns[f"config.{name}"] = values
    for at in range(len(base.args)):
        texts = [one.args[at] for one in entries]
        if any(text != texts[0] for text in texts):
            before, name = _of_argument(base.args, at, texts, {*base.config, *found.first})
            values = [typed(text.removeprefix(before)) for text in texts]
            found.in_args[at] = f"{before}${{config.{name}}}"
            found.first[name] = values[0]
            columns[f"config.{name}"] = values
    _combine(found, columns, len(entries))
    return found


def _of_argument(
    args: Sequence[str], at: int, texts: Sequence[str], taken: set[str]
) -> tuple[str, str]:
    """Return what an argument begins with in all runs, and a name for the rest."""
    before, name = "", ""
    key, equals, _ = texts[0].partition("=")
    if equals and all(text.startswith(f"{key}=") for text in texts):
        before, name = f"{key}=", re.split(r"[.+/]", key.lstrip("+-"))[-1]
    elif at and args[at - 1].startswith("-"):
        name = args[at - 1].lstrip("-")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in taken:
        name = next(one for n in range(1, 1_000) if (one := f"task_{n}") not in taken)
    return before, name


def _combine(found: SweptRuns, columns: dict[str, list[Any]], count: int) -> None:
    """Write the columns as a grid where they are the product of their values."""
    unique = {key: [*_unique(values)] for key, values in columns.items()}
    names = _by_speed(columns)
    product = [*itertools.product(*(unique[name] for name in names))]
    rows = [*zip(*(columns[name] for name in names), strict=True)]
    if len(product) == count and product == rows:
        found.grid = {name: _listed(unique[name]) for name in names}
    else:
        kept = [*{_hashable(row): row for row in reversed(rows)}.values()][::-1]
        found.zip = {name: [row[at] for row in kept] for at, name in enumerate(names)}
        if len(found.zip) == 1:
            found.grid = {name: _listed(values) for name, values in found.zip.items()}
            found.zip = {}


def _hashable(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(repr(one) for one in row)


def _unique(values: list[Any]) -> list[Any]:
    found: dict[str, Any] = {}
    for one in values:
        found.setdefault(repr(one), one)
    return [*found.values()]


def _by_speed(columns: dict[str, list[Any]]) -> list[str]:
    """Return the keys, what changes slowest first."""

    def changes(name: str) -> int:
        values = columns[name]
        return sum(a != b for a, b in itertools.pairwise(values))

    return sorted(columns, key=changes)


def _listed(values: list[Any]) -> Any:
    """Return values as a range where they are many whole numbers in a row."""
    if len(values) > _SHORT and all(type(one) is int for one in values):
        step = values[1] - values[0]
        if step > 0 and values == [*range(values[0], values[-1] + 1, step)]:
            return {"range": [values[0], values[-1] + step, step]}
    return values
