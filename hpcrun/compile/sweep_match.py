"""Whether a rule of a sweep fits a point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcrun.compile.interpolate import interpolate_one
from hpcrun.compile.problems import Problems, did_you_mean, listing
from hpcrun.compile.sweep_point import Point
from hpcrun.compile.tree import Key, Mark, Tree, get_at, has

_PRESET: Key = ("deepspeed_config",)


class Matcher:
    """Compares ``match`` and ``exclude`` rules with points.

    Parameters
    ----------
    tree
        Where the rules were written.
    base
        The whole spec without the sweep: the values of keys that a point leaves alone.
    with_deepspeed
        Puts what ``deepspeed_config`` names below a tree.
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
        base: Tree,
        with_deepspeed: Callable[[Tree, Problems], Tree],
        exists: Callable[[Key, Mark], bool],
        problems: Problems,
    ) -> None:
        self._tree, self._base, self._with_deepspeed = tree, base, with_deepspeed
        self._exists, self._problems = exists, problems
        self.replaced: set[str] = set()

    def fits(self, rule: dict[str, Any], point: Point) -> bool:
        """Whether each key of the rule has at the point the value, or one of the list, named."""
        return all(
            any(
                _is(value, found) for value in _listed(wanted) for found in self._found(name, point)
            )
            for name, wanted in rule.items()
        )

    def check(self, rule: dict[str, Any], points: Sequence[Point], place: Key) -> bool:
        """Whether a rule can be applied; notes what in it is a mistake.

        A value that a swept key has at no point is one: a misspelt label would let runs through.
        """
        before = len(self._problems.found)
        if not rule:
            self._problems.at(
                self._tree, place, "is empty; accepted is a mapping of keys to values"
            )
        for name, wanted in rule.items():
            inside = (*place, name)
            key = tuple(name.split("."))
            if not self._exists(key, self._tree.mark(inside)) or name in self.replaced:
                continue
            if not any(option.key == key[: len(option.key)] for one in points for option in one):
                continue
            found = [value for point in points for value in self._found(name, point)]
            for value in _listed(wanted):
                if not any(_is(value, one) for one in found):
                    there = list(dict.fromkeys(str(one) for one in found if _is_plain(one)))
                    self._problems.at(
                        self._tree,
                        inside,
                        f"no run has {value!r} here; there are {listing(there, 12)}",
                        did_you_mean(str(value), there),
                    )
        return len(self._problems.found) == before

    def _found(self, name: str, point: Point) -> list[Any]:
        """What a key is at a point: its label, where it has one, and its value."""
        key = tuple(name.split("."))
        for option in reversed(point):
            if option.key == key:
                return [option.swept, option.value]
            if option.key == key[: len(option.key)] and has(option.value, key[len(option.key) :]):
                return [get_at(option.value, key[len(option.key) :])]
        by_preset = key[0] == "deepspeed" and any(option.key == _PRESET for option in point)
        value = get_at(self._base.data, key)
        if not by_preset and not (isinstance(value, str) and "${" in value):
            return [value]
        tree = self._base
        for option in point:
            tree = option.tree.over(tree)
        quiet = Problems()
        return [interpolate_one(self._with_deepspeed(tree, quiet), key, quiet)]


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _is(wanted: Any, found: Any) -> bool:
    """Whether two values are the same; numbers compare as numbers, and true is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, (int, float)) and isinstance(found, str):
        return str(wanted) == found
    return bool(wanted == found)
