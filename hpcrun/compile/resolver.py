"""Resolves interpolations for every point of a sweep: once for all that have the same structure.

OmegaConf answers for the first point of a structure. For the others, what refers to a swept key is
followed through the interpolation graph, and the plain data is patched. What the graph cannot tell
(resolvers, relative and nested interpolations) is asked of OmegaConf for each point.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from typing import Any

from hpcrun.compile.graph import CANNOT_SAY, Node, dependents, interpolations, is_inside, overlap
from hpcrun.compile.interpolate import interpolate
from hpcrun.compile.problems import Problems
from hpcrun.compile.sweep_point import Point, PointTree
from hpcrun.compile.tree import Key, Tree

WithDeepspeed = Callable[[Tree, Problems], Tree]

_PRESET: Key = ("deepspeed_config",)


class Resolved:
    """A point's data.

    Attributes
    ----------
    tree
        Where its values were written.
    data
        All of it, resolved; shared between points where it is the same, so nobody may change it.
    elsewhere
        Equal for two points whose data differ only below ``config``; None where that is not known.
    """

    def __init__(self, tree: Tree, data: dict[str, Any], elsewhere: str | None = None) -> None:
        self.tree, self.data, self.elsewhere = tree, data, elsewhere


class Resolver:
    """Resolves the points of a sweep over ``base``."""

    def __init__(self, base: Tree, with_deepspeed: WithDeepspeed) -> None:
        self._base, self._with_deepspeed = base, with_deepspeed
        self._structures: dict[str, _Structure | None] = {}

    def __call__(self, point: Point, problems: Problems) -> Resolved:
        name, plain = self._structure_of(point)
        if name in self._structures:
            structure = self._structures[name]
            found = structure.patched(point) if structure else None
            return found or self.slowly(point, problems)
        first = self.slowly(point, problems)
        number = len(self._structures)
        self._structures[name] = None if problems else _Structure.of(number, plain, first)
        return first

    def slowly(self, point: Point, problems: Problems) -> Resolved:
        """OmegaConf's own answer."""
        tree = self._base
        for option in point:
            tree = option.tree.over(tree)
        tree = self._with_deepspeed(tree, problems)
        return Resolved(tree, interpolate(tree, problems))

    def _structure_of(self, point: Point) -> tuple[str, frozenset[Key]]:
        """What points have in common that differ only in plain values of the same keys."""
        parts: list[Any] = []
        plain = []
        for option in point:
            if _is_plain(option.value) and option.key != _PRESET:
                plain.append(option.key)
                parts.append(option.key)
            else:
                parts.append([option.key, option.value])
        return json.dumps(parts), frozenset(plain)


def _is_plain(value: Any) -> bool:
    """Whether it replaces what was there, changes nothing around it and refers to nothing."""
    if isinstance(value, str):
        return "${" not in value and value != "???"
    return not isinstance(value, (dict, list))


class _Structure:
    """Points that differ only in the plain values of ``keys``.

    Parameters
    ----------
    number
        Tells structures apart.
    nodes
        The interpolations that refer to the keys, each after those that it refers to.
    """

    def __init__(
        self, number: int, first: Resolved, keys: frozenset[Key], nodes: list[Node]
    ) -> None:
        self._number, self._first, self._keys, self._nodes = number, first, keys, nodes
        changing = [*keys, *(node.key for node in nodes)]
        self._elsewhere = sorted(key for key in changing if key[0] != "config")

    @classmethod
    def of(cls, number: int, keys: frozenset[Key], first: Resolved) -> _Structure | None:
        """Where the graph can be followed; None where each point must ask OmegaConf."""
        strings = [one for one in interpolations(first.tree.data) if one[0] not in keys]
        if any(is_inside(key, at) for at, _ in strings for key in keys):
            return None
        nodes = [Node.of(at, text) for at, text in strings]
        if None in nodes:
            return None
        ordered = dependents([node for node in nodes if node is not None], keys)
        if ordered is None or any(overlap(node.key, _PRESET) for node in ordered):
            return None
        return cls(number, first, keys, ordered)

    def patched(self, point: Point) -> Resolved | None:
        """The data of a point of this structure; None where OmegaConf must be asked."""
        data = dict(self._first.data)
        own: dict[Key, Any] = {(): data}
        for option in point:
            if option.key in self._keys:
                _put(option.key, option.value, own)
        for node in self._nodes:
            value = node.value(data)
            if value is CANNOT_SAY:
                return None
            _put(node.key, value, own)
        elsewhere = str(self._number)
        if self._elsewhere:
            elsewhere += json.dumps([_at(data, key) for key in self._elsewhere])
        return Resolved(PointTree(self._first.tree, point, data), data, elsewhere)


def _put(key: Key, value: Any, own: dict[Key, Any]) -> None:
    """Set a value in copies of the containers around it, each of which is copied once."""
    for length in range(1, len(key)):
        if key[:length] not in own:
            around = own[key[: length - 1]]
            part: Any = int(key[length - 1]) if isinstance(around, list) else key[length - 1]
            inner = around.get(part) if isinstance(around, dict) else around[part]
            around[part] = own[key[:length]] = (
                copy(inner) if isinstance(inner, (dict, list)) else {}
            )
    around = own[key[:-1]]
    around[int(key[-1]) if isinstance(around, list) else key[-1]] = value


def _at(data: Any, key: Key) -> Any:
    for part in key:
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data
