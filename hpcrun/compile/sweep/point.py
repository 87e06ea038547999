"""A point of a sweep: the values that one run gives to the swept keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from hpcrun.compile.source.marked_tree import Key, SourceMark, Tree, dotted, nest
from hpcrun.shared_dataclass import dataclass
from hpcrun.text import short_ends

# Returns whether a key written at a mark exists; reports it where it does not.
KeyExists = Callable[[Key, SourceMark], bool]


@dataclass(frozen=True)
class Assignment:
    """One key's value at a point."""

    key: Key
    value: Any
    """Merged in at the key."""
    swept: Any
    """The value in the run's ``swept``: the label of a choice, otherwise ``value``."""
    mark: SourceMark
    """The place where it was written."""
    is_set: bool = False
    """True for a value that a rule sets: no part of the run's swept values."""
    items: tuple[SourceMark, ...] = ()
    """The places of a list's items."""

    @property
    def tree(self) -> Tree:
        """Return the value at its full key."""
        items = {(*self.key, str(at)): mark for at, mark in enumerate(self.items)}
        return Tree(nest(self.key, self.value), {self.key: self.mark, **items})


# Assignments in their order; later ones win.
Point = tuple[Assignment, ...]


class PointTree(Tree):
    """The tree of a point with the structure of another: only the marks of its values differ."""

    def __init__(self, alike: Tree, point: Point, data: dict[str, Any]) -> None:
        super().__init__(data, alike.marks)
        self._point = point

    def mark(self, key: Key) -> SourceMark:
        """Return where ``key``, or the nearest key around it, was written."""
        for one in reversed(self._point):
            if key[: len(one.key)] == one.key:
                inside = key[len(one.key) :]
                return one.items[int(inside[0])] if one.items and inside else one.mark
        return super().mark(key)


def keys_of(points: Iterable[Point]) -> frozenset[Key]:
    """Return all keys that have a value at some point."""
    return frozenset(one.key for point in points for one in point)


def swept_of(point: Point) -> dict[str, Any]:
    """Return full key -> swept value or label."""
    return {dotted(one.key): one.swept for one in point if not one.is_set}


def text_of(value: Any) -> str:
    """Return a swept value as labels and messages show it."""
    if isinstance(value, (str, float)) or type(value) is int:
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def short_names(points: Iterable[Point]) -> dict[str, str]:
    """Return full key -> its shortest end that no other swept key shares."""
    keys = dict.fromkeys(one.key for point in points for one in point if not one.is_set)
    return short_ends(map(dotted, keys))


def label(swept: dict[str, Any], names: dict[str, str]) -> str:
    """Return a run's label: ``lr=0.001,stage=2``."""
    return ",".join(f"{names[key]}={text_of(value)}" for key, value in swept.items())
