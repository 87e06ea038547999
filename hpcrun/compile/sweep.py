"""A grid fans a spec out into points, in the order written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.compile import source
from hpcrun.compile.problems import Problems
from hpcrun.compile.source import kind_of
from hpcrun.compile.tree import COMMAND_LINE, Key, Mark, Tree, dotted, nest
from hpcrun.errors import Problem

_NOT_SWEPT = {
    "name": "an experiment has one name",
    "extends": "an experiment builds on the same files",
    "cluster": "an experiment runs on one cluster; submit it once for each",
    "sweep": "a sweep cannot sweep itself",
    "code": "an experiment freezes one code",
    "environment.python": "an experiment has one Python",
}


@dataclass(frozen=True)
class Option:
    """One value of a swept key.

    Attributes
    ----------
    value
        What is merged in at the key.
    swept
        What the run's ``swept`` shows: the value, or the label of a choice.
    tree
        The value at its full key, with where it was written.
    """

    value: Any
    swept: Any
    tree: Tree


@dataclass(frozen=True)
class Axis:
    """One swept key and its values."""

    key: Key
    options: tuple[Option, ...]
    place: Mark

    @property
    def name(self) -> str:
        return dotted(self.key)


Point = tuple[tuple[Axis, Option], ...]


def axes(
    grid: Any, tree: Tree, sweeps: Sequence[str], directory: Path, problems: Problems
) -> list[Axis]:
    """The axes of a spec's grid, then those of ``--sweep key=a,b``, which replace their like."""
    found: dict[Key, Axis] = {}
    for name, values in (grid if isinstance(grid, dict) else {}).items():
        place: Key = ("sweep", "grid", name)
        key = tuple(name.split("."))
        pairs = _values(values, place, tree, problems)
        marks = [(tree.mark((*place, *where)), label, value) for where, label, value in pairs]
        _note(found, key, marks, tree.mark(place), problems)
    for text in sweeps:
        name, _, values = text.partition("=")
        if not name or not values.strip():
            problems.add(Problem(COMMAND_LINE, "--sweep", f"found {text!r}; accepted is key=a,b"))
            continue
        parsed = source.parse_value(f"[{values}]", name, directory, problems)
        if parsed is None:
            continue
        mark = Mark(COMMAND_LINE, None, directory)
        given = [
            (parsed.mark(("value", str(index))), None, value)
            for index, value in enumerate(parsed.data["value"])
        ]
        _note(found, tuple(name.strip().split(".")), given, mark, problems)
    return list(found.values())


def points(found: Sequence[Axis]) -> list[Point]:
    """The product of the axes, the last varying fastest; one empty point without axes."""
    combinations = itertools.product(*(axis.options for axis in found))
    return [tuple(zip(found, options, strict=True)) for options in combinations]


def short_names(found: Sequence[Key]) -> dict[Key, str]:
    """The shortest suffix of each key that no other key shares."""
    names = {}
    for key in found:
        for length in range(1, len(key) + 1):
            suffix = key[-length:]
            if sum(other[-length:] == suffix for other in found) == 1:
                break
        names[key] = dotted(suffix)
    return names


def label(swept: dict[str, Any], names: dict[str, str]) -> str:
    """``lr=0.001,stage=2``."""
    return ",".join(f"{names[key]}={_text(value)}" for key, value in swept.items())


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def _values(
    values: Any, place: Key, tree: Tree, problems: Problems
) -> list[tuple[Key, str | None, Any]]:
    """(where below ``place``, label or None, value) of each value of one key of the grid."""
    if isinstance(values, dict):
        choices = values.get("choices")
        if list(values) != ["choices"] or not isinstance(choices, dict):
            problems.at(
                tree,
                place,
                f"found {kind_of(values)}; accepted are a list of values and "
                "{choices: {label: value}}",
            )
            return []
        return [(("choices", name), name, value) for name, value in choices.items()]
    if not isinstance(values, list):
        problems.at(
            tree,
            place,
            f"found {kind_of(values)}; accepted is a list of values",
            f"write [{values}]" if values is not None else None,
        )
        return []
    return [((str(index),), None, value) for index, value in enumerate(values)]


def _note(
    found: dict[Key, Axis],
    key: Key,
    given: Sequence[tuple[Mark, str | None, Any]],
    mark: Mark,
    problems: Problems,
) -> None:
    name = dotted(key)
    for prefix, why in _NOT_SWEPT.items():
        if name == prefix or name.startswith(prefix + "."):
            problems.add(
                Problem(mark.file, f"sweep.grid.{name}", f"cannot be swept: {why}", None, mark.line)
            )
            return
    if not given:
        if not problems.under(f"sweep.grid.[{name}]", f"sweep.grid.{name}"):
            problems.add(
                Problem(
                    mark.file,
                    f"sweep.grid.{name}",
                    "the list is empty; accepted is at least one value",
                    None,
                    mark.line,
                )
            )
        return
    for other in found:
        shorter = min(len(other), len(key))
        if other != key and other[:shorter] == key[:shorter]:
            problems.add(
                Problem(
                    mark.file,
                    f"sweep.grid.{name}",
                    f"overlaps with {dotted(other)}, which is swept too",
                    None,
                    mark.line,
                )
            )
            return
    options, seen = [], set()
    for place, choice, value in given:
        same = json.dumps(value if choice is None else choice, sort_keys=True)
        if same in seen:
            problems.add(
                Problem(
                    place.file,
                    f"sweep.grid.{name}",
                    f"the value {_text(value)} is given twice",
                    "remove one",
                    place.line,
                )
            )
        seen.add(same)
        at = Tree(nest(key, value), {key: place})
        options.append(Option(value, value if choice is None else choice, at))
    found[key] = Axis(key, tuple(options), mark)
