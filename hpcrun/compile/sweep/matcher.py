"""Whether a rule of a sweep fits a point."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Mark, Tree, get_at
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.compile.sweep.point import Point, text_of
from hpcrun.compile.sweep.references import overlap
from hpcrun.compile.sweep.resolver import Resolver


class Matcher:
    """Compares ``match`` and ``exclude`` rules with points.

    Parameters
    ----------
    tree
        Where the rules were written.
    resolve
        The data of a point: the values of keys that it does not set itself.
    exists
        Whether a key names something; notes a mistake where it does not.

    Attributes
    ----------
    replaced
        Keys whose values the command line replaced: rules of the file may fit none of them.
    """

    def __init__(
        self,
        tree: Tree,
        resolve: Resolver,
        exists: Callable[[Key, Mark], bool],
        problems: Problems,
    ) -> None:
        self._tree, self._resolve = tree, resolve
        self._exists, self._problems = exists, problems
        self.replaced: set[str] = set()

    def fits(self, rule: dict[str, Any], point: Point) -> bool:
        """Whether each key of the rule has at the point the value, or one of the list, named."""
        return all(_fits(wanted, self._found(name, point)) for name, wanted in rule.items())

    def check(
        self, rule: dict[str, Any], points: Sequence[Point], place: Key, outside: Collection[Key]
    ) -> bool:
        """Whether a rule can be applied; notes what in it is a mistake.

        A value that a swept key has at no point is one: a misspelt label would let runs through.
        So is a key that only a block around this one sweeps (``outside``): its value is not known
        yet.
        """
        before = len(self._problems.found)
        if not rule:
            self._problems.at(
                self._tree, place, "is empty; accepted is a mapping of keys to values"
            )
        swept = {option.key for point in points for option in point}
        for name, wanted in rule.items():
            inside = (*place, name)
            key = tuple(name.split("."))
            if not self._exists(key, self._tree.mark(inside)) or name in self.replaced:
                continue
            if any(overlap(key, one) for one in swept):
                self._check_values(name, wanted, points, inside)
            elif any(overlap(key, one) for one in outside):
                self._problems.at(
                    self._tree,
                    inside,
                    "is swept outside this block",
                    "write the rule where the key is swept",
                )
        return len(self._problems.found) == before

    def _check_values(self, name: str, wanted: Any, points: Sequence[Point], place: Key) -> None:
        found = {text_of(value): value for one in points for value in self._found(name, one)}
        there = [text for text, value in found.items() if not isinstance(value, dict)]
        for value in [wanted] if wanted in found.values() else _listed(wanted):
            if not any(_is(value, one) for one in found.values()):
                self._problems.at(
                    self._tree,
                    place,
                    f"no run has {value!r} here; there are {listing(there, 12)}",
                    did_you_mean(text_of(value), there),
                )

    def _found(self, name: str, point: Point) -> list[Any]:
        """What a key is at a point: its label, where it has one, and its value."""
        key = tuple(name.split("."))
        around = [option for option in point if overlap(option.key, key)]
        if len(around) == 1 and around[0].key == key and not _refers(around[0].value):
            return [around[0].swept, around[0].value]
        labels = [option.swept for option in around if option.key == key]
        return [*labels, get_at(self._resolve(point, Problems()).data, key)]


def _fits(wanted: Any, found: Sequence[Any]) -> bool:
    return any(_is(value, one) for value in (wanted, *_listed(wanted)) for one in found)


def _refers(value: Any) -> bool:
    return isinstance(value, (dict, list)) or (isinstance(value, str) and "${" in value)


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _is(wanted: Any, found: Any) -> bool:
    """Whether two values are the same; numbers compare as numbers, and true is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, (int, float)) and isinstance(found, str):
        return str(wanted) == found
    return bool(wanted == found)
