"""Matches the rules of a sweep, ``when`` and ``exclude``, with its points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hpcrun.compile.source.marked_tree import Key, get_at
from hpcrun.compile.source.problems import Problems, Reporter, did_you_mean, listing
from hpcrun.compile.sweep.point import KeyExists, Point, keys_of, text_of
from hpcrun.compile.sweep.references import has_interpolation, overlap
from hpcrun.compile.sweep.resolver import Resolver


class Matcher:
    """Compares ``match`` and ``exclude`` rules with points.

    Parameters
    ----------
    report
        For the tree in which the rules were written.
    resolve
        Returns the values of keys that a point does not set itself.

    Attributes
    ----------
    replaced
        Keys whose values the command line replaced: rules of the file may fit none of them.
    """

    def __init__(self, report: Reporter, resolve: Resolver, exists: KeyExists) -> None:
        self._report, self._resolve, self._exists = report, resolve, exists
        self.replaced: set[str] = set()

    def fits(self, rule: dict[str, Any], point: Point) -> bool:
        """Return whether a point has the rule's value, or one of its list, at each of its keys."""
        return all(_fits(wanted, self._found(name, point)) for name, wanted in rule.items())

    def check(
        self, rule: dict[str, Any], points: Sequence[Point], place: Key, outside: Collection[Key]
    ) -> bool:
        """Return whether a rule can be applied; report what in it is wrong.

        A value that a swept key has at no point is wrong: a misspelt label would let runs through.
        So is a key that only a block around this one sweeps (``outside``): its value is not known
        yet.
        """
        found = self._report.problems.found
        before = len(found)
        if not rule:
            self._report.at(place, "is empty; accepted is a mapping of keys to values")
        swept = keys_of(points)
        for name, wanted in rule.items():
            inside = (*place, name)
            key = tuple(name.split("."))
            if not self._exists(key, self._report.mark(inside)) or name in self.replaced:
                continue
            if any(overlap(key, one) for one in swept):
                self._check_values(name, wanted, points, inside)
            elif any(overlap(key, one) for one in outside):
                hint = "write the rule where the key is swept"
                self._report.at(inside, "is swept outside this block", hint)
        return len(found) == before

    def _check_values(self, name: str, wanted: Any, points: Sequence[Point], place: Key) -> None:
        found = {text_of(value): value for one in points for value in self._found(name, one)}
        there = [text for text, value in found.items() if not isinstance(value, dict)]
        for value in [wanted] if wanted in found.values() else _listed(wanted):
            if not any(_is(value, one) for one in found.values()):
                message = f"no run has {value!r} here; there are {listing(there, 12)}"
                self._report.at(place, message, did_you_mean(text_of(value), there))

    def _found(self, name: str, point: Point) -> list[Any]:
        """Return a key's label at a point, if it has one, and its value."""
        key = tuple(name.split("."))
        around = [one for one in point if overlap(one.key, key)]
        if len(around) == 1 and around[0].key == key:
            value = around[0].value
            if not isinstance(value, (dict, list)) and not has_interpolation(value):
                return [around[0].swept, value]
        labels = [one.swept for one in around if one.key == key]
        return [*labels, get_at(self._resolve(point, Problems()).data, key)]


def _fits(wanted: Any, found: Sequence[Any]) -> bool:
    return any(_is(value, one) for value in (wanted, *_listed(wanted)) for one in found)


def _listed(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _is(wanted: Any, found: Any) -> bool:
    """Return whether two values are the same; numbers compare as numbers, and true is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, (int, float)) and isinstance(found, str):
        return str(wanted) == found
    return bool(wanted == found)
