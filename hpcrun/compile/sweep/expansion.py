"""A sweep fans a spec out into points, in an order that does not change.

A block's points are the product of its keys in the order written - ``grid`` first, then ``zip``,
``points``, ``random`` and ``union`` - the last varying fastest; ``when`` adds keys to some of them,
``exclude`` takes some away, and ``repeat`` does what is left several times.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import COMMAND_LINE, Key, Mark, Tree, dotted, nest
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.sweep import draws
from hpcrun.compile.sweep import values as sweep_values
from hpcrun.compile.sweep.matcher import Matcher
from hpcrun.compile.sweep.point import Option, Point, text_of
from hpcrun.compile.sweep.values import MOST, Given
from hpcrun.errors import Problem

_NOT_SWEPT = {
    "name": "an experiment has one name",
    "extends": "an experiment builds on the same files",
    "cluster": "an experiment runs on one cluster; submit it once for each",
    "sweep": "a sweep cannot sweep itself",
    "code": "an experiment freezes one code",
    "environment.python": "an experiment has one Python",
}

# One after the other, the ways on from a point; each way adds options.
Dimension = list[Point]
Exists = Callable[[Key, Mark], bool]


@dataclass(frozen=True)
class Expanded:
    """A sweep's points.

    Attributes
    ----------
    points
        In order; one that is empty where nothing is swept.
    repeats
        Full keys whose values repeat a point.
    """

    points: list[Point]
    repeats: tuple[str, ...]


class Expansion:
    """The expansion of one sweep.

    Parameters
    ----------
    tree
        Where the sweep's block was written.
    exists
        Whether a key names something; notes a mistake where it does not.
    matcher
        What says whether a rule fits a point.
    """

    def __init__(self, tree: Tree, exists: Exists, matcher: Matcher, problems: Problems) -> None:
        self._tree, self._exists = tree, exists
        self._matcher, self._problems = matcher, problems
        self._repeats: dict[str, None] = {}

    def expand(self, block: dict[str, Any], sweeps: Sequence[str], directory: Path) -> Expanded:
        """The points of a checked block, with ``--sweep key=a,b`` of the command line in it."""
        block = {**block, "grid": dict(block["grid"]), "repeat": dict(block["repeat"])}
        for text in sweeps:
            self._take(text, block, directory)
        points = self._block(block, ("sweep",), frozenset())
        if not self._problems:
            points = self._without_twins(points)
        return Expanded(points, tuple(self._repeats))

    def _take(self, text: str, block: dict[str, Any], directory: Path) -> None:
        """Put ``key=a,b`` into the block, in the place of what the file has for the key."""
        name, _, values = text.partition("=")
        name = name.strip()
        if not name or not values.strip():
            found = f"found {text!r}; accepted is key=a,b"
            self._problems.add(Problem(COMMAND_LINE, "--sweep", found))
            return
        parsed = yaml_reader.parse_value(f"[{values}]", name, directory, self._problems)
        if parsed is None:
            return
        given = parsed.data["value"]
        if len(given) == 1 and sweep_values.is_form(given[0]):
            (given,) = given
        part = "repeat" if name in block["repeat"] else "grid"
        block[part][name] = given
        mark = Mark(COMMAND_LINE, None, directory)
        place: Key = ("sweep", part, name)
        self._tree = Tree(nest(place, given), {place: mark}).over(self._tree)
        self._matcher.replaced.add(name)

    def _block(self, block: dict[str, Any], place: Key, outside: frozenset[Key]) -> list[Point]:
        """The points of a block within others, which sweep the keys ``outside``."""
        dimensions: list[tuple[Key, Dimension]] = [
            *self._axes(block["grid"], (*place, "grid")),
            ((*place, "zip"), self._zip(block["zip"], (*place, "zip"))),
            ((*place, "points"), self._points(block["points"], (*place, "points"))),
            ((*place, "random"), self._random(block["random"], (*place, "random"))),
        ]
        around = outside | _keys(way for _, ways in dimensions for way in ways)
        union = self._union(block["union"], (*place, "union"), around)
        points = self._product([*dimensions, ((*place, "union"), union)])
        for index, rule in enumerate(block["when"]):
            points = self._when(points, rule, (*place, "when", str(index)), outside)
        for index, rule in enumerate(block["exclude"]):
            inside = (*place, "exclude", str(index))
            if self._matcher.check(rule, points, inside, outside):
                points = [one for one in points if not self._matcher.fits(rule, one)]
        if block["exclude"] and not points:
            self._problems.at(self._tree, (*place, "exclude"), "leaves no run")
        self._repeats.update(dict.fromkeys(block["repeat"]))
        return self._product([(place, points), *self._axes(block["repeat"], (*place, "repeat"))])

    def _axes(self, grid: dict[str, Any], place: Key) -> list[tuple[Key, Dimension]]:
        found = []
        for name, values in grid.items():
            inside = (*place, name)
            if place[-1] == "repeat" and sweep_values.is_whole(values):
                values = {"range": [values]}
            ways: Dimension = [(option,) for option in self._options(name, values, inside)]
            found.append((inside, ways))
        return found

    def _options(self, name: str, values: Any, place: Key) -> list[Option]:
        """The options of one key; none where a mistake was noted."""
        key, mark = tuple(name.split(".")), self._tree.mark(place)
        before = len(self._problems.found)
        found = sweep_values.given(values, place, self._tree, self._problems)
        if not self._may_be_swept(key, place, mark):
            return []
        within = f"{dotted(place[:-1])}.[{name}]"
        if not found and before == len(self._problems.found) and not self._problems.under(within):
            self._note(mark, place, "the list is empty; accepted is at least one value")
        seen = set()
        for one in found:
            same = json.dumps(one.value if one.label is None else one.label, sort_keys=True)
            if same in seen:
                shown = f"the value {text_of(one.value)} is given twice"
                self._note(one.mark, place, shown, "remove one")
            seen.add(same)
        return [option_of(key, one) for one in found]

    def _zip(self, block: dict[str, Any], place: Key) -> Dimension:
        columns = {
            name: self._options(name, values, (*place, name)) for name, values in block.items()
        }
        lengths = {name: len(options) for name, options in columns.items()}
        if len(set(lengths.values())) > 1:
            if 0 not in lengths.values():
                counted = ", ".join(f"{name} {length}" for name, length in lengths.items())
                self._problems.at(self._tree, place, f"the lists are not equally long: {counted}")
            return []
        rows = list(zip(*columns.values(), strict=True))
        self._check_among(rows[0] if rows else (), place)
        return rows

    def _points(self, block: list[dict[str, Any]], place: Key) -> Dimension:
        found = []
        for index, point in enumerate(block):
            inside = (*place, str(index))
            found.append(self._assignments(point, inside, is_set=False))
        return found

    def _assignments(self, point: dict[str, Any], place: Key, *, is_set: bool) -> Point:
        options = []
        if not point:
            self._problems.at(
                self._tree, place, "is empty; accepted is a mapping of keys to values"
            )
        for name, value in point.items():
            key, mark = tuple(name.split(".")), self._tree.mark((*place, name))
            if self._may_be_swept(key, (*place, name), mark):
                options.append(option_of(key, Given(value, None, mark), is_set=is_set))
        self._check_among(options, place)
        return tuple(options)

    def _random(self, block: dict[str, Any] | None, place: Key) -> Dimension:
        if block is None:
            return []
        keys = [tuple(name.split(".")) for name in block["keys"]]
        inside = (*place, "keys")
        if not all(
            self._may_be_swept(key, (*inside, name), self._tree.mark((*inside, name)))
            for key, name in zip(keys, block["keys"], strict=True)
        ):
            return []
        rows = draws.samples(block, place, self._tree, self._problems)
        points = [
            tuple(option_of(key, one) for key, one in zip(keys, row, strict=True)) for row in rows
        ]
        self._check_among(points[0] if points else (), place)
        found: dict[str, Point] = {}
        for point in points:
            found.setdefault(_shown(point), point)
        return list(found.values())

    def _union(
        self, blocks: list[dict[str, Any]], place: Key, outside: frozenset[Key]
    ) -> Dimension:
        found: Dimension = []
        for index, block in enumerate(blocks):
            found += self._block(block, (*place, str(index)), outside)
        return found

    def _when(
        self, points: list[Point], rule: dict[str, Any], place: Key, outside: frozenset[Key]
    ) -> list[Point]:
        match = rule["match"]
        if not self._matcher.check(match, points, (*place, "match"), outside):
            return points
        more = self._block(rule, place, outside | _keys(points))
        sets: Point = ()
        if rule["set"]:
            sets = self._assignments(rule["set"], (*place, "set"), is_set=True)
            self._check_apart(set(_keys(more)), sets, place)
        found: list[Point] = []
        for point in points:
            if self._matcher.fits(match, point):
                found += [self._joined(point, (*one, *sets), place) for one in more]
            else:
                found.append(point)
            if self._is_too_long(len(found), place):
                return points
        return found

    def _joined(self, point: Point, more: Point, place: Key) -> Point:
        """Both; a key that a rule sets twice has the later value."""
        again = {option.key for option in more if option.is_set}
        kept = tuple(one for one in point if not (one.is_set and one.key in again))
        self._check_apart({one.key for one in kept}, more, place)
        return (*kept, *more)

    def _product(self, dimensions: Iterable[tuple[Key, Dimension]]) -> list[Point]:
        parts = [(place, ways) for place, ways in dimensions if ways]
        keys: set[Key] = set()
        length = 1
        for place, ways in parts:
            own = {option.key: option for way in ways for option in way}
            self._check_apart(keys, own.values(), place)
            keys |= set(own)
            length *= len(ways)
            if self._is_too_long(length, place):
                return [()]
        combined = itertools.product(*(ways for _, ways in parts))
        return [tuple(itertools.chain.from_iterable(ways)) for ways in combined]

    def _is_too_long(self, length: int, place: Key) -> bool:
        if length > MOST:
            self._problems.at(
                self._tree, place, f"the sweep has {length:,} runs by here; accepted are {MOST:,}"
            )
        return length > MOST

    def _check_apart(self, keys: set[Key], more: Iterable[Option], place: Key) -> None:
        """No key is given two values, nor a value and another inside it.

        But for a rule, which may set a part of what is swept.
        """
        for option in more:
            for other in keys:
                shorter = min(len(other), len(option.key))
                if other[:shorter] != option.key[:shorter]:
                    continue
                if option.is_set and len(option.key) > len(other):
                    continue
                where = (*place, dotted(option.key)) if place[-1] in _BLOCKS else place
                found = f"overlaps with {dotted(other)}, which is swept too"
                mark = option.tree.mark(option.key)
                self._note(mark, where, found)
                break

    def _check_among(self, options: Sequence[Option], place: Key) -> None:
        """No two options of one point are of keys that overlap."""
        for index, option in enumerate(options):
            self._check_apart({one.key for one in options[:index]}, [option], place)

    def _may_be_swept(self, key: Key, place: Key, mark: Mark) -> bool:
        name = dotted(key)
        for prefix, why in _NOT_SWEPT.items():
            if name == prefix or name.startswith(prefix + "."):
                self._note(mark, place, f"cannot be swept: {why}")
                return False
        return self._exists(key, mark)

    def _without_twins(self, points: list[Point]) -> list[Point]:
        """Each point once: the blocks of a union may overlap."""
        found: dict[str, Point] = {}
        for point in points:
            shown = _shown(point)
            other = found.setdefault(shown, point)
            if other is not point and _all_of(other) != _all_of(point):
                given = ", ".join(
                    f"{dotted(one.key)}={one.swept}" for one in point if not one.is_set
                )
                self._problems.at(
                    self._tree,
                    ("sweep",),
                    f"two runs have {given or 'no swept value'} and differ in what rules set",
                    "sweep a key that tells them apart",
                )
                break
        return list(found.values())

    def _note(self, mark: Mark, place: Key, message: str, hint: str | None = None) -> None:
        self._problems.add(Problem(mark.file, dotted(place), message, hint, mark.line))


_BLOCKS = ("zip", "points", "random", "union", "set")


def option_of(key: Key, given: Given, *, is_set: bool = False) -> Option:
    """What a key gets."""
    swept = given.value if given.label is None else given.label
    tree = Tree(nest(key, given.value), {key: given.mark})
    return Option(key, given.value, swept, tree, is_set)


def _keys(points: Iterable[Point]) -> frozenset[Key]:
    return frozenset(option.key for point in points for option in point)


def short_names(found: Iterable[Key]) -> dict[Key, str]:
    """The shortest suffix of each key that no other key shares."""
    keys = list(dict.fromkeys(found))
    names = {}
    for key in keys:
        for length in range(1, len(key) + 1):
            suffix = key[-length:]
            if sum(other[-length:] == suffix for other in keys) == 1:
                break
        names[key] = dotted(suffix)
    return names


def label(swept: dict[str, Any], names: dict[str, str]) -> str:
    """``lr=0.001,stage=2``."""
    return ",".join(f"{names[key]}={text_of(value)}" for key, value in swept.items())


def _shown(point: Point) -> str:
    swept = {dotted(one.key): one.swept for one in point if not one.is_set}
    return json.dumps(swept, sort_keys=True)


def _all_of(point: Point) -> str:
    return json.dumps({dotted(one.key): one.value for one in point}, sort_keys=True)
