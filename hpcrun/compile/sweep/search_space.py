"""The block of a search: the keys of its space, their distributions and conditions, and points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcrun.compile.source.marked_tree import Key, Reporter, dotted, get_at
from hpcrun.compile.source.problems import kind_of, listing
from hpcrun.compile.sweep import foreign_forms, placed_points
from hpcrun.compile.sweep.draws import is_number, is_whole, mistake_of
from hpcrun.compile.sweep.point import Assignment, Point
from hpcrun.compile.sweep.references import has_interpolation, overlap
from hpcrun.compile.sweep.values import MOST
from hpcrun.compile.target.slurm_options import NAME
from hpcrun.state import chosen_point
from hpcrun.text import plural

PLACE: Key = ("sweep", "search")
_BOUNDS = ("uniform", "loguniform", "int", "int_loguniform")
_CHOICE, _WHEN = "choice", "when"
_FORMS = (
    "{loguniform: [1e-5, 1e-1]}, {uniform: [0, 1]}, {int: [1, 8]}, {int_loguniform: [1, 512]}, "
    "{choice: [a, b]} or a list"
)


class SearchedKey(NamedTuple):
    """What the space of a search says of a key."""

    form: str
    bounds: list[Any]
    """The two ends, or the values of a choice."""
    when: dict[str, list[Any]]
    """Other key of the space -> the values with one of which a run has this key."""
    base: Any
    """The value of runs that do not have it, that of the spec."""

    @classmethod
    def from_data(cls, form: Mapping[str, Any]) -> SearchedKey:
        """Return it without its base, from `to_data`."""
        (name, bounds), *_ = form.items()
        return cls(name, bounds, form.get(_WHEN, {}), None)

    def to_data(self) -> dict[str, Any]:
        """Return it as the spec has it."""
        return {self.form: self.bounds, **({_WHEN: self.when} if self.when else {})}

    def has(self, value: Any) -> bool:
        """Return whether a value is in the bounds."""
        if self.form == _CHOICE:
            return chosen_point.is_among(value, self.bounds)
        is_right = is_whole(value) if self.form.startswith("int") else is_number(value)
        return bool(is_right and self.bounds[0] <= value <= self.bounds[1])


class Space(NamedTuple):
    """The checked space of a search."""

    keys: Mapping[Key, SearchedKey]
    """In an order in which a key's conditions name earlier ones."""
    samples: Sequence[Point]
    """Points of all keys that have every bound, every choice and what the spec says of keys that
    some runs do not have."""

    def to_data(self) -> dict[str, Any]:
        """Return the keys as a spec has them, in full."""
        return {dotted(key): one.to_data() for key, one in self.keys.items()}

    def upper_bounds(self) -> dict[str, Any]:
        """Return the greatest value of each key; of a choice the last one."""
        found = {}
        for key, one in self.keys.items():
            found[dotted(key)] = one.bounds[-1]
            if one.when and one.form != _CHOICE and is_number(one.base):
                found[dotted(key)] = max(one.base, one.bounds[-1])
        return found


def parse(
    block: dict[str, Any], may_be_swept: Callable[[Key, Key], bool], report: Reporter
) -> Space:
    """Check the block of a search; empty after a problem.

    ``may_be_swept`` reports, for a key and the place where it is written, why it may not be.
    """
    below = report.below(PLACE)
    below.at_least("trials", block["trials"], 1, MOST)
    below.at_least("parallel", block["parallel"], 1)
    for index, one in enumerate(block["more_objectives"]):
        if one["mode"] is None:
            below.at(f"more_objectives.{index}.mode", "is missing; accepted are 'min' and 'max'")
    if block["more_objectives"] and block["prune"] != "none":
        found = f"{block['prune']} judges by one objective, and there are more_objectives"
        below.at("prune", found, "leave one of the two out")
    if block["population"] is not None:
        _check_population(block, below)
    if (count := len(block["first"])) > block["trials"] > 0:
        found = f"found {count} points; trials: {block['trials']}"
        below.at("first", found, f"write trials: {count} or more")
    for part in ("first", "learn_from"):
        for index, one in enumerate(block[part]):
            if one in block[part][:index]:
                below.at(f"{part}.{index}", f"{one} is given twice", "remove one")
    for index, name in enumerate(block["learn_from"]):
        if not NAME.fullmatch(name):
            found = f"found {name!r}; accepted is the name of an experiment"
            below.at(f"learn_from.{index}", found)
    if block["budget"] is not None and not block["budget"] > 0:
        below.at("budget", f"found {block['budget']}; accepted are hours above 0")
    if not block["space"]:
        hint = f"as in space: {{config.lr: {{loguniform: [1e-5, 1e-1]}}}}; forms are {_FORMS}"
        below.at("space", "is missing: the keys to search and their bounds", hint)
    keys: dict[Key, SearchedKey] = {}
    for name, given in block["space"].items():
        key, place = tuple(name.split(".")), (*PLACE, "space", name)
        if not may_be_swept(key, place):
            continue
        if key[0] != "config":
            found = "a search chooses values of config"
            report.at(place, found, "refer to one with ${config.NAME}, or sweep a grid of this key")
        elif (one := _searched(key, given, place, report)) is not None:
            keys[key] = one
    for key, other in itertools.combinations(keys, 2):
        if overlap(key, other):
            found = f"overlaps with {dotted(key)}, which is searched too"
            report.at((*PLACE, "space", dotted(other)), found, "remove one of the two")
            keys.pop(key, None)
    if len(keys) < len(block["space"]) or not (keys := _in_order(keys, report)):
        return Space({}, [])
    names = {dotted(key): one for key, one in keys.items()}
    _check_sampler(block, names, below)
    for index, point in enumerate(block["first"]):
        _check_point(point, names, (*PLACE, "first", str(index)), report)
    values = {key: [*one.bounds] for key, one in keys.items()}
    for key, one in keys.items():
        if one.when and not chosen_point.is_among(one.base, one.bounds):
            values[key].append(one.base)
    count = max(map(len, values.values()))
    samples = [
        tuple(
            Assignment(key, value, value, report.mark((*PLACE, "space", dotted(key))))
            for key, some in values.items()
            for value in [some[min(index, len(some) - 1)]]
        )
        for index in range(count)
    ]
    return Space(keys, samples)


def _searched(key: Key, given: Any, place: Key, report: Reporter) -> SearchedKey | None:
    when: dict[str, list[Any]] = {}
    if isinstance(given, dict) and _WHEN in given:
        found = given[_WHEN]
        given = {name: one for name, one in given.items() if name != _WHEN}
        if not isinstance(found, dict) or not found:
            hint = "as in when: {config.optimizer: sgd}, or a list of values"
            message = f"found {kind_of(found)}; accepted are keys of the space and their values"
            report.at((*place, _WHEN), message if found != {} else "is empty", hint)
            return None
        when = {str(name): one if isinstance(one, list) else [one] for name, one in found.items()}
    base = get_at(report.tree.data, key)
    if when and (isinstance(base, dict) or has_interpolation(base) or base == "???"):
        found = f"some runs do not have it, and the spec has no plain value for them: {base!r}"
        report.at(place, found, f"give {dotted(key)} one, such as null")
        return None
    form = _form(given, place, report)
    if form is None:
        return None
    if form[0] in ("uniform", "loguniform") and is_whole(base) and abs(base) > 1:
        whole = "int" if form[0] == "uniform" else "int_loguniform"
        found = f"draws fractions, and the spec has the whole number {base}"
        report.note(place, found, f"{{{whole}: {form[1]}}} draws whole numbers")
    return SearchedKey(*form, when, base)


def _form(given: Any, place: Key, report: Reporter) -> tuple[str, list[Any]] | None:
    form = next(iter(given), None) if isinstance(given, dict) and len(given) == 1 else None
    if isinstance(given, list):
        form, given = _CHOICE, {_CHOICE: given}
    if form == _CHOICE:
        values = given[form]
        if not isinstance(values, list) or len(values) < 2:
            report.at(place, "a choice is a list of two values or more")
        elif any(isinstance(one, (list, dict, float)) and not is_number(one) for one in values):
            report.at(place, "a choice has plain values", "choose among names, for the program")
        elif any(one in values[:at] for at, one in enumerate(values)):
            report.at(place, "a value is given twice (1, 1.0 and true are one)", "remove one")
        else:
            return form, values
        return None
    if form not in _BOUNDS:
        found = f"{kind_of(given)}" if form is None else f"{{{form}: …}}"
        own = foreign_forms.own_form(given)
        hint = None
        if own and not own[1].startswith(("{normal", "{range")):
            hint = f"write {place[-1]}: {own[1].replace('int_uniform', 'int')}"
        report.at(place, f"found {found}; accepted are {_FORMS}", hint)
        return None
    name = "int_uniform" if form == "int" else str(form)
    if mistake := mistake_of(name, given[form]):
        report.at(place, f"{mistake}; accepted is {{{form}: [low, high]}}")
        return None
    return str(form), given[form]


def _in_order(keys: dict[Key, SearchedKey], report: Reporter) -> dict[Key, SearchedKey]:
    """Return the keys, each behind those that its conditions name; none after a problem."""
    names = {dotted(key): one for key, one in keys.items()}
    mistakes = [(key, *found) for key, one in names.items() for found in _mistakes(one, names)]
    for key, name, message, hint in mistakes:
        report.at((*PLACE, "space", key, _WHEN, name), message, hint)
    if mistakes:
        return {}
    found: dict[str, SearchedKey] = {}
    while len(found) < len(names):
        left = [name for name in names if name not in found]
        ready = next((name for name in left if names[name].when.keys() <= found.keys()), None)
        if ready is None:
            place = (*PLACE, "space", left[0], _WHEN)
            report.at(place, f"{listing(left)} wait for each other", "remove one of the conditions")
            return {}
        found[ready] = names[ready]
        if (never := _contradiction(ready, found)) is not None:
            place = (*PLACE, "space", ready, _WHEN)
            message = f"no run has it: {never} would have to have two values at once"
            report.at(place, message, "change the values of one of the conditions")
            return {}
    return {tuple(name.split(".")): one for name, one in found.items()}


def _mistakes(
    one: SearchedKey, names: Mapping[str, SearchedKey]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield for a key's conditions the key that each names, what is wrong and a hint."""
    for name, values in one.when.items():
        if name not in names:
            yield name, f"there is no key {name} in the space", f"it has {listing(names)}"
        elif (other := names[name]).form in ("uniform", "loguniform"):
            hint = "ask for a value of a choice or of whole numbers"
            yield name, f"{name} is {{{other.form}: …}}, which is never one value again", hint
        else:
            for value in values:
                if not other.has(value):
                    shown = f"{{{other.form}: {other.bounds}}}"
                    yield name, f"found {value!r}, which is not in {shown}", None


def _contradiction(name: str, keys: Mapping[str, SearchedKey]) -> str | None:
    """Return a key that has to have different values for a key to be there, or None."""
    needed: dict[str, list[Any]] = {}
    behind = [name]
    for one in behind:
        for other, values in keys[one].when.items():
            known = needed.get(other, values)
            needed[other] = [value for value in known if chosen_point.is_among(value, values)]
            if not needed[other]:
                return other
            if other not in behind:
                behind.append(other)
    return None


def _check_sampler(
    block: Mapping[str, Any], names: Mapping[str, SearchedKey], report: Reporter
) -> None:
    if block["sampler"] == "gp" and (some := [name for name, one in names.items() if one.when]):
        found = f"gp takes keys that all runs have, and {listing(some)} is not in all"
        report.at("sampler", found, "write sampler: tpe")
    if block["sampler"] == "cmaes":
        if some := [name for name, one in names.items() if one.when or one.form == _CHOICE]:
            found = f"cmaes takes numbers that all runs have, and {listing(some)} is no such one"
            report.at("sampler", found, "write sampler: tpe")
        if block["more_objectives"]:
            found = "cmaes looks for one objective, and more_objectives has others"
            report.at("sampler", found, "write sampler: tpe")
    if block["learn_from"] and block["sampler"] not in ("tpe", "gp"):
        found = f"{block['sampler']} learns from no run"
        report.at("learn_from", found, "leave it out, or write sampler: tpe")
    some = [name for name, one in names.items() if not one.form.startswith(("int", _CHOICE))]
    if some and block["sampler"] == "grid":
        found = f"a grid has no {names[some[0]].form} key, and {listing(some)} is one"
        report.at("sampler", found, "list its values, or write sampler: qmc")
    if some or block["population"] is not None:
        return
    space = {name: one.to_data() for name, one in names.items()}
    size = sum(1 for _ in itertools.islice(placed_points.grid(space), block["trials"]))
    if size < block["trials"]:
        tell = report.at if block["sampler"] == "grid" else report.note
        found = f"found {block['trials']:,}, and the space has {plural(size, 'point', ',')}"
        tell("trials", f"{found}: others repeat one", f"write trials: {size}")


def _check_population(block: Mapping[str, Any], report: Reporter) -> None:
    population, size = block["population"], block["parallel"]
    own = report.below("population")
    own.at_least("every", population["every"], 1)
    if not 0 < population["share"] <= 1 / 2:
        own.at("share", f"found {population['share']}; accepted is above 0 to 0.5")
    if not 0 <= population["resample"] <= 1:
        own.at("resample", f"found {population['resample']}; accepted is 0 to 1")
    if size is None or size >= block["trials"]:
        found = f"found {size or 'null'}; the first trials are so many, and others begin from them"
        few = block["trials"] // 4 or 1
        hint = f"less than trials ({block['trials']}), such as parallel: {few}"
        report.at("parallel", found, hint)
    if block["prune"] != "none":
        hint = "leave prune out: population ends what falls behind"
        own.at((), f"does not go together with prune: {block['prune']}", hint)
    if block["sampler"] not in ("tpe", "random", "qmc"):
        found = f"does not go together with sampler: {block['sampler']}, which is not tested"
        own.at((), found, "write sampler: random")
    if others := [name for name in ("more_objectives", "learn_from") if block[name]]:
        found = f"does not go together with {listing(others)}: that is not tested"
        own.at((), found, f"leave {others[0]} out")


def _check_point(
    point: Mapping[str, Any], names: Mapping[str, SearchedKey], place: Key, report: Reporter
) -> None:
    asked = [name for name, one in names.items() if chosen_point.calls_for(one.to_data(), point)]
    if missing := [name for name in asked if name not in point]:
        report.at(place, f"has no value of {listing(missing)}", "give each key of the space one")
    if more := [name for name in point if name not in names]:
        report.at(place, f"has {listing(more)}, which the space does not have", "remove it")
    for name, one in names.items():
        if name in point and name not in asked:
            conditions = f"{{{', '.join(f'{key}: {some}' for key, some in one.when.items())}}}"
            found = f"this point does not have it: when: {conditions}"
            report.at((*place, name), found, "remove it")
        elif name in point and not one.has(point[name]):
            found = f"found {point[name]!r}, which is not in {{{one.form}: {one.bounds}}}"
            report.at((*place, name), found)
