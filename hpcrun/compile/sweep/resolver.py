"""Resolves the points of a sweep, once for all of the same structure.

OmegaConf resolves the first point of a structure. For the others, the interpolation graph gives
the values that refer to a swept key, and the plain data is patched. What the graph cannot follow
(resolvers, relative and nested interpolations) is resolved by OmegaConf for each point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from hpcrun.compile.source.interpolate import interpolate
from hpcrun.compile.source.marked_tree import Key, Reporter, Tree
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.sweep.point import Point, PointTree
from hpcrun.compile.sweep.references import (
    UNKNOWN,
    Interpolation,
    dependents,
    interpolations,
    may_name,
    overlap,
)
from hpcrun.errors import Problem
from hpcrun.state.patched import Patched, at

WithDeepspeed = Callable[[Tree, Problems], Tree]

_PRESET: Key = ("deepspeed_config",)
# Points with mistakes, after which others like them, and all others, are said to have the same.
_ENOUGH, _ENOUGH_IN_ALL = 50, 200
# Values of all points that OmegaConf resolves, and what their references lead to.
_MOST_SLOWLY = 20_000_000


class Resolved(NamedTuple):
    """The data of a point, resolved."""

    tree: Tree
    """The data before, with the places where its values were written."""
    data: dict[str, Any]
    """Read-only: points share what is the same."""
    elsewhere: str | None = None
    """Equal for two points whose data differ only below ``config``; None if unknown."""


class Resolver:
    """Resolves the points of a sweep over ``base``."""

    def __init__(self, base: Tree, with_deepspeed: WithDeepspeed) -> None:
        self._base, self._with_deepspeed = base, with_deepspeed
        self._structures: dict[Hashable, _Structure | None] = {}
        self._failed: dict[Hashable, list[Problem]] = {}
        self._failures: dict[Hashable, int] = {}
        self._failing = self._resolved = 0

    def __call__(self, point: Point, problems: Problems) -> Resolved:
        name, plain = self._structure_of(point)
        if self._failing >= _ENOUGH_IN_ALL:
            problems.add(*next(reversed(self._failed.values())))
            return Resolved(self._base, {})
        if name in self._structures:
            structure = self._structures[name]
            found = structure.patched(point) if structure else None
            return found or self._checked(name, point, problems)
        first = self._noted(name, point, problems)
        number = len(self._structures)
        self._structures[name] = None if problems else _Structure.of(number, plain, point, first)
        return first

    def _checked(self, name: Hashable, point: Point, problems: Problems) -> Resolved:
        """Resolve `slowly`, unless many points of the structure had problems: then repeat those."""
        if self._failures.get(name, 0) >= _ENOUGH:
            problems.add(*self._failed[name])
            return Resolved(self._base, {})
        return self._noted(name, point, problems)

    def _noted(self, name: Hashable, point: Point, problems: Problems) -> Resolved:
        found = self.slowly(point, problems)
        if problems:
            self._failures[name] = self._failures.get(name, 0) + 1
            self._failed[name] = problems.found
            self._failing += 1
        return found

    def following(self, point: Point) -> list[Interpolation] | None:
        """Return what changes with the keys of a resolved point, in the order of its references.

        None where only OmegaConf can tell.
        """
        structure = self._structures.get(self._structure_of(point)[0])
        return None if structure is None else structure.nodes

    def slowly(self, point: Point, problems: Problems) -> Resolved:
        """Resolve with OmegaConf alone."""
        tree = self._base
        for one in point:
            tree = one.tree.over(tree)
        tree = self._with_deepspeed(tree, problems)
        self._resolved += len(tree.marks)
        if self._resolved > _MOST_SLOWLY:
            found = "there are too many points whose interpolations have to be resolved one by one"
            hint = "sweep values that plain ${key} refers to, without resolvers and nested ${…}"
            Reporter(tree, problems).at("sweep", found, hint)
            problems.check()
        data = interpolate(tree, problems)
        self._resolved += problems.extent.copied
        return Resolved(tree, data)

    def _structure_of(self, point: Point) -> tuple[Hashable, frozenset[Key]]:
        """Return the name of the structure of all points that differ only in plain values."""
        parts: list[Hashable] = []
        plain = []
        for one in point:
            if _is_plain(one.value) and one.key != _PRESET:
                plain.append(one.key)
                parts.append(one.key)
            else:
                parts.append((one.key, json.dumps(one.value)))
        return tuple(parts), frozenset(plain)


def _is_plain(value: Any) -> bool:
    """Return whether a value replaces what was there and refers to nothing."""
    if isinstance(value, str):
        return "${" not in value and value != "???"
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, dict)


class _Structure:
    """Points that differ only in the plain values of ``keys``.

    ``nodes`` are the interpolations that refer to the keys, each after those that it refers to.
    """

    def __init__(
        self, number: int, first: Resolved, keys: frozenset[Key], nodes: list[Interpolation]
    ) -> None:
        self._number, self._first, self._keys, self.nodes = number, first, keys, nodes
        changing = [*keys, *(node.key for node in nodes)]
        self._elsewhere = sorted(key for key in changing if key[0] != "config")

    @classmethod
    def of(
        cls, number: int, keys: frozenset[Key], point: Point, first: Resolved
    ) -> _Structure | None:
        """Return the structure; None where the graph cannot be followed."""
        given = [one.key for one in point]
        if any(overlap(key, other) for key in keys for other in given if key != other):
            return None
        strings = [one for one in interpolations(first.tree.data) if one[0] not in keys]
        if any(len(at) < len(key) and overlap(key, at) for at, _ in strings for key in keys):
            return None
        nodes = [(text, Interpolation.parse(at, text)) for at, text in strings]
        ordered = dependents([node for _, node in nodes if node is not None], keys)
        if ordered is None or any(overlap(node.key, _PRESET) for node in ordered):
            return None
        changing = [*keys, *(node.key for node in ordered)]
        if any(node is None and may_name(text, changing) for text, node in nodes):
            return None
        return cls(number, first, keys, ordered)

    def patched(self, point: Point) -> Resolved | None:
        """Return the data of a point of this structure; None where only OmegaConf can."""
        patched = Patched(self._first.data)
        data = patched.data
        for one in point:
            if one.key in self._keys:
                patched.put(one.key, one.value)
        for node in self.nodes:
            value = node.value(data)
            if value is UNKNOWN:
                return None
            patched.put(node.key, value)
        elsewhere = str(self._number)
        if self._elsewhere:
            elsewhere += json.dumps([at(data, key) for key in self._elsewhere])
        return Resolved(PointTree(self._first.tree, point, data), data, elsewhere)
