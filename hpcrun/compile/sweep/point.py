"""What a point of a sweep is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Mark, Tree


@dataclass(frozen=True)
class Option:
    """One key's value at a point.

    Attributes
    ----------
    value
        What is merged in at the key.
    swept
        What the run's ``swept`` shows: the value, or the label of a choice.
    tree
        The value at its full key, with where it was written.
    is_set
        A rule set it: no part of the run's swept values.
    """

    key: Key
    value: Any
    swept: Any
    tree: Tree
    is_set: bool = False


# Options in their order; later ones win.
Point = tuple[Option, ...]


class PointTree(Tree):
    """The tree of a point whose structure another point has: only marks of its options differ."""

    def __init__(self, alike: Tree, point: Point, data: dict[str, Any]) -> None:
        super().__init__(data, alike.marks)
        self._point = point

    def mark(self, key: Key) -> Mark:
        """Where ``key``, or the nearest key around it, was written."""
        for option in reversed(self._point):
            if key[: len(option.key)] == option.key:
                return option.tree.mark(key)
        return super().mark(key)


def text_of(value: Any) -> str:
    """A swept value in a label or a message."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))
