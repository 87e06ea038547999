"""Expands a sweep into its points, in an order that does not change.

A block's points are the product of its keys in the order written - ``grid`` first, then ``zip``,
``points``, ``random`` and ``union`` - the last varying fastest; ``when`` adds keys to some of them,
``exclude`` removes some, and ``repeat`` multiplies what is left.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile.source import limits
from hpcrun.compile.source.marked_tree import (
    COMMAND_LINE,
    Key,
    Reporter,
    Tree,
    dotted,
    get_at,
    nest,
)
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.compile.sweep import foreign_forms, search_space, values
from hpcrun.compile.sweep.draws import is_whole
from hpcrun.compile.sweep.foreign_forms import HYDRA
from hpcrun.compile.sweep.point import Assignment, KeyExists, Point, keys_of, swept_of, text_of
from hpcrun.compile.sweep.references import has_interpolation, overlap
from hpcrun.compile.sweep.resolver import Resolver
from hpcrun.compile.sweep.values import MOST
from hpcrun.errors import Problem
from hpcrun.shared_dataclass import replace
from hpcrun.text import plural, shortened

_NOT_SWEPT = {
    "name": "an experiment has one name",
    "extends": "an experiment builds on the same files",
    "cluster": "an experiment runs on one cluster; submit it once for each",
    "sweep": "a sweep cannot sweep itself",
    "code": "an experiment freezes one code",
    "environment.lock": "an experiment has one environment",
    "environment.python": "an experiment has one Python",
    "environment.venv": "an experiment has one environment",
}

# What an expansion may take: a swept value of a point counts 8, each look at a point and each copy
# of a value into a point 1.
_MOST_WORK = 10_000_000
MOST_KEYS = 200
LONGEST_NAME = 4_000

Block = dict[str, Any]
# Alternatives in their order; each adds its assignments to a point.
Dimension = list[Point]


class Expansion:
    """The expansion of one sweep, whose block was written in the tree of ``report``.

    ``full`` gives the full key that a short one of the command line stands for.
    """

    def __init__(
        self, report: Reporter, exists: KeyExists, resolve: Resolver, full: Callable[[Key], Key]
    ) -> None:
        self._report, self._exists, self._full = report, exists, full
        self._matcher = _Matcher(report, resolve, exists)
        self.repeats: tuple[str, ...] = ()
        """Full keys whose values repeat a point."""
        self._work = 0

    def expand(self, block: Block, sweeps: Sequence[str], directory: Path) -> list[Point]:
        """Return the points of a checked block and of ``--sweep key=a,b`` on the command line.

        In order; a single empty one where nothing is swept.
        """
        if not sweeps and not any(block[part] for part in block if part != "max_parallel"):
            return [()]
        block = {**block, "grid": dict(block["grid"]), "repeat": dict(block["repeat"])}
        for text in sweeps:
            self._take(text, block, directory)
        points = self._block(block, ("sweep",), frozenset())
        return points if self._report.problems else self._without_twins(points)

    def space(self, search: Block, others: Block, sweeps: Sequence[str]) -> search_space.Space:
        """Return the space of a search, which stands alone in its sweep."""
        given = [part for part in others if part != "max_parallel" and others[part]]
        if given or sweeps:
            found = f"a search stands alone, and there is {listing([*given, *sweeps])} too"
            self._report.at(("sweep", "search"), found, "leave it out, or search its keys as well")
        if others["max_parallel"] is not None:
            self._report.at(
                ("sweep", "max_parallel"), "a search has its own: sweep.search.parallel"
            )
        self._check_keys(len(search["space"]), ("sweep", "search", "space"))
        return search_space.parse(search, self._may_be_swept, self._report)

    def _take(self, text: str, block: Block, directory: Path) -> None:
        """Put ``key=a,b`` into the block, instead of the file's values of the key."""
        name, _, listed = text.partition("=")
        name = name.strip()
        problems = self._report.problems
        if not name or not listed.strip() or limits.is_deep(name) or limits.unwritable(text):
            found = f"found {shortened(text, 200)!r}; accepted is key=a,b"
            problems.add(Problem(COMMAND_LINE, "--sweep", found))
            return
        if HYDRA.fullmatch(listed.strip()):
            shown = shortened(listed.strip(), 200)
            found = f"found {shown!r}, which is Hydra's, numpy's or a shell's; accepted are values"
            _, form = foreign_forms.own_form(listed.strip()) or ("", "")
            form = form or "{linspace: [START, STOP, COUNT]}"
            hint = f"--sweep {name}=a,b or --sweep '{name}={form}'"
            if form.startswith("["):
                hint = f"--sweep {name}={form[1:-1].replace(', ', ',')}"
            problems.add(Problem(COMMAND_LINE, name, found, hint))
            return
        typed, name = name, dotted(self._full(tuple(name.split("."))))
        if name != typed:
            problems.notes.append(f"--sweep {text}: the key is read as {name}")
        if name in self._matcher.replaced:
            hint = f"give all values at once: --sweep {name}=a,b"
            problems.add(Problem(COMMAND_LINE, name, "--sweep is given twice for it", hint))
            return
        parsed = values.parse_typed(listed, name, directory, problems)
        if parsed is None:
            return
        part = "repeat" if name in block["repeat"] else "grid"
        given = block[part][name] = parsed.data["value"]
        place: Key = ("sweep", part, name)
        marks = {(*place, *key[1:]): mark for key, mark in parsed.marks.items()}
        tree = Tree(nest(place, given), marks).over(self._report.tree)
        self._report = Reporter(tree, problems)
        self._matcher.replaced.add(name)

    def _block(self, block: Block, place: Key, outside: frozenset[Key]) -> list[Point]:
        """Return the points of a block within others, which sweep the keys ``outside``."""
        dimensions: list[tuple[Key, Dimension]] = [
            *self._axes(block["grid"], (*place, "grid")),
            ((*place, "zip"), self._zip(block["zip"], (*place, "zip"))),
            ((*place, "points"), self._points(block["points"], (*place, "points"))),
            ((*place, "random"), self._random(block["random"], (*place, "random"))),
        ]
        around = outside | keys_of(way for _, ways in dimensions for way in ways)
        union = self._union(block["union"], (*place, "union"), around)
        points = self._product([*dimensions, ((*place, "union"), union)])
        for index, rule in enumerate(block["when"]):
            points = self._when(points, rule, (*place, "when", str(index)), outside)
        for index, rule in enumerate(block["exclude"]):
            inside = (*place, "exclude", str(index))
            self._spend_on_rule(rule, points, inside)
            if self._matcher.check(rule, points, inside, outside):
                left = [one for one in points if not self._matcher.fits(rule, one)]
                if len(left) == len(points) > 0:
                    self._report.note(inside, "leaves out no run: none has these values together")
                points = left
        if block["exclude"] and not points:
            self._report.at((*place, "exclude"), "leaves no run")
        self.repeats = tuple(dict.fromkeys((*self.repeats, *block["repeat"])))
        return self._product([(place, points), *self._axes(block["repeat"], (*place, "repeat"))])

    def _axes(self, grid: dict[str, Any], place: Key) -> list[tuple[Key, Dimension]]:
        found = []
        for name, given in grid.items():
            inside = (*place, name)
            if place[-1] == "repeat" and is_whole(given):
                given = {"range": [given]}
            ways: Dimension = [(one,) for one in self._values(name, given, inside)]
            found.append((inside, ways))
        return found

    def _values(self, name: str, given: Any, place: Key) -> list[Assignment]:
        """Return the assignments of one key; empty after a problem."""
        key, problems = tuple(name.split(".")), self._report.problems
        before = len(problems.found)
        found = values.parse(key, given, place, self._report)
        self._spend(8 * len(found), place)
        if not self._may_be_swept(key, place):
            return []
        within = f"{dotted(place[:-1])}.[{name}]"
        if not found and before == len(problems.found) and not problems.under(within):
            self._report.at(place, "the list is empty; accepted is at least one value")
        seen = set()
        for one in found:
            same = self._name_of(one, place)
            if same in seen:
                shown = f"the value {text_of(one.value)} is given twice"
                self._report.at_mark(one.mark, place, shown, "remove one")
            seen.add(same)
        return found

    def _zip(self, block: dict[str, Any], place: Key) -> Dimension:
        columns = {name: self._values(name, given, (*place, name)) for name, given in block.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            if 0 not in lengths.values():
                counted = ", ".join(f"{name} {length}" for name, length in lengths.items())
                self._report.at(place, f"the lists are not equally long: {counted}")
            return []
        rows = list(zip(*columns.values(), strict=True))
        self._check_among(rows[0] if rows else (), place)
        return rows

    def _points(self, block: list[dict[str, Any]], place: Key) -> Dimension:
        return [self._assignments(one, (*place, str(at))) for at, one in enumerate(block)]

    def _assignments(self, point: dict[str, Any], place: Key, *, is_set: bool = False) -> Point:
        found = []
        if not point:
            self._report.at(place, "is empty; accepted is a mapping of keys to values")
        self._spend(len(point) * (8 + len(point) // 10), place)
        for name, value in point.items():
            key, at = tuple(name.split(".")), (*place, name)
            if self._may_be_swept(key, at):
                one = values.assignment_at(key, value, at, self._report)
                found.append(replace(one, is_set=is_set))
                if not is_set:
                    self._name_of(found[-1], place)
        self._check_among(found, place)
        return tuple(found)

    def _random(self, block: dict[str, Any] | None, place: Key) -> Dimension:
        if block is None:
            return []
        for name in block["keys"]:
            inside = (*place, "keys", name)
            if not self._may_be_swept(tuple(name.split(".")), inside):
                return []
        self._spend(8 * max(0, min(block["samples"], MOST)) * len(block["keys"]), place)
        points = values.samples(block, place, self._report)
        self._check_among(points[0] if points else (), place)
        for point in points:
            for one in point:
                self._name_of(one, place)
        return points

    def _union(self, blocks: list[Block], place: Key, outside: frozenset[Key]) -> Dimension:
        found: Dimension = []
        for at, one in enumerate(blocks):
            found += self._block(one, (*place, str(at)), outside)
            if self._is_too_long(len(found), place):
                return found[:1]
        return found

    def _when(
        self, points: list[Point], rule: Block, place: Key, outside: frozenset[Key]
    ) -> list[Point]:
        match = rule["match"]
        self._spend_on_rule(match, points, place)
        if not self._matcher.check(match, points, (*place, "match"), outside):
            return points
        more = self._block(rule, place, outside | keys_of(points))
        sets: Point = ()
        if rule["set"]:
            sets = self._assignments(rule["set"], (*place, "set"), is_set=True)
            self._check_apart(keys_of(more), sets, place)
        found: list[Point] = []
        matched = [self._matcher.fits(match, point) for point in points]
        if points and not any(matched):
            self._report.note((*place, "match"), "matches no run: none has these values together")
        for point, is_matched in zip(points, matched, strict=True):
            if is_matched:
                self._spend(sum(len(point) + len(one) + len(sets) for one in more), place)
                found += [self._join(point, (*one, *sets), place) for one in more]
            else:
                found.append(point)
            if self._is_too_long(len(found), place):
                return points
        return found

    def _join(self, point: Point, more: Point, place: Key) -> Point:
        """Return both; a key that a rule sets twice has the later value."""
        again = {one.key for one in more if one.is_set}
        kept = tuple(one for one in point if not (one.is_set and one.key in again))
        self._check_apart({one.key for one in kept}, more, place)
        return (*kept, *more)

    def _product(self, dimensions: Iterable[tuple[Key, Dimension]]) -> list[Point]:
        parts = [(place, ways) for place, ways in dimensions if ways]
        keys: set[Key] = set()
        length = 1
        for place, ways in parts:
            own = {one.key: one for way in ways for one in way}
            self._check_keys(len(keys) + len(own), place)
            self._check_apart(keys, own.values(), place)
            keys |= set(own)
            length *= len(ways)
            if self._is_too_long(length, place):
                return [()]
        self._spend(length * len(keys), ("sweep",))
        combined = itertools.product(*(ways for _, ways in parts))
        return [tuple(itertools.chain.from_iterable(ways)) for ways in combined]

    def _spend(self, work: int, place: Key) -> None:
        """Count what an expansion takes; raise SpecError if it is too much."""
        self._work += work
        if self._work > _MOST_WORK:
            found = (
                "by here, the sweep's points, keys and rules are too many to be expanded together"
            )
            self._report.at(
                place, found, "sweep fewer keys, with fewer rules, or in two experiments"
            )
            self._report.problems.check()

    def _spend_on_rule(self, rule: dict[str, Any], points: list[Point], place: Key) -> None:
        wanted = sum(len(one) if isinstance(one, list) else 1 for one in rule.values())
        self._spend(len(points) * (1 + wanted), place)

    def _check_keys(self, count: int, place: Key) -> None:
        if count > MOST_KEYS:
            self._report.at(place, f"a point has more keys than the {MOST_KEYS} that are accepted")
            self._report.problems.check()

    def _name_of(self, one: Assignment, place: Key) -> str:
        """Return the text of a swept value; raise SpecError if it is too long for a run's name."""
        text = json.dumps(one.swept, sort_keys=True)
        if len(text) > LONGEST_NAME:
            found = f"a swept value has {len(text):,} characters; accepted are {LONGEST_NAME:,}"
            hint = "name it: {choices: {label: value}}"
            self._report.at_mark(one.mark, place, found, hint)
            self._report.problems.check()
        return text

    def _is_too_long(self, length: int, place: Key) -> bool:
        if length > MOST:
            found = f"the sweep has {length:,} runs by here; accepted are {MOST:,}"
            self._report.at(place, found)
        return length > MOST

    def _check_apart(self, keys: Collection[Key], more: Iterable[Assignment], place: Key) -> None:
        """Report a key that is given two values, or a value and another inside it.

        A rule may set a part of what is swept.
        """
        for one in more:
            for other in keys:
                is_part = one.is_set and len(one.key) > len(other)
                if is_part or not overlap(one.key, other):
                    continue
                where = (*place, dotted(one.key)) if place[-1] in _BLOCKS else place
                found = f"overlaps with {dotted(other)}, which is swept too"
                self._report.at_mark(one.mark, where, found)
                break

    def _check_among(self, point: Sequence[Assignment], place: Key) -> None:
        """Report two values of one point whose keys overlap."""
        self._check_keys(len(point), place)
        for index, one in enumerate(point):
            self._check_apart({other.key for other in point[:index]}, [one], place)

    def _may_be_swept(self, key: Key, place: Key) -> bool:
        name = dotted(key)
        if limits.is_deep(name):
            self._report.at(place, f"the key is nested more than {limits.DEEPEST} deep")
            return False
        for prefix, why in _NOT_SWEPT.items():
            if name == prefix or name.startswith(prefix + "."):
                self._report.at(place, f"cannot be swept: {why}")
                return False
        return self._exists(key, self._report.mark(place))

    def _without_twins(self, points: list[Point]) -> list[Point]:
        """Return each point once: the blocks of a union may overlap."""
        found: dict[str, Point] = {}
        for point in points:
            other = found.setdefault(_name(point), point)
            if other is not point and _all_of(other) != _all_of(point):
                shown = ", ".join(f"{key}={value}" for key, value in swept_of(point).items())
                message = f"two runs have {shown or 'no swept value'} and differ in what rules set"
                self._report.at("sweep", message, "sweep a key that tells them apart")
                break
        if twins := len(points) - len(found):
            same = "the same as another" if twins == 1 else "the same as others"
            runs = plural(len(found), "run", ",")
            message = f"{len(points):,} points, {twins:,} of them {same}: {runs}"
            self._report.note("sweep", message)
        return list(found.values())


_BLOCKS = ("zip", "points", "random", "union", "set")


def _name(point: Point) -> str:
    return json.dumps(swept_of(point), sort_keys=True)


def _all_of(point: Point) -> str:
    return json.dumps({dotted(one.key): one.value for one in point}, sort_keys=True)


class _Matcher:
    """Compares the rules of a sweep, ``when`` and ``exclude``, with its points.

    ``resolve`` gives the values of keys that a point does not set itself.
    """

    def __init__(self, report: Reporter, resolve: Resolver, exists: KeyExists) -> None:
        self._report, self._resolve, self._exists = report, resolve, exists
        self.replaced: set[str] = set()
        """Keys whose values the command line replaced: rules of the file may fit none of them."""

    def fits(self, rule: dict[str, Any], point: Point) -> bool:
        """Return whether a point has the rule's value, or one of its list, at each of its keys."""
        return all(_fits(wanted, self._values_at(name, point)) for name, wanted in rule.items())

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
        found = {text_of(value): value for one in points for value in self._values_at(name, one)}
        there = [text for text, value in found.items() if not isinstance(value, dict)]
        for value in [wanted] if wanted in found.values() else _as_list(wanted):
            if not any(_is(value, one) for one in found.values()):
                message = f"no run has {value!r} here; there are {listing(there, 12)}"
                self._report.at(place, message, did_you_mean(text_of(value), there))

    def _values_at(self, name: str, point: Point) -> list[Any]:
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
    return any(_is(value, one) for value in (wanted, *_as_list(wanted)) for one in found)


def _as_list(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _is(wanted: Any, found: Any) -> bool:
    """Return whether two values are the same; numbers compare as numbers, and true is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, (int, float)) and isinstance(found, str):
        return str(wanted) == found
    return bool(wanted == found)
