"""The values that a swept key takes: lists, labelled choices, ranges, and random draws.

Draws are the same on every machine. Each key draws from a stream of its own, made from the seed and
its name: more samples, or another key after it, change none of the values that were there. Numbers
are rounded to a small part of what they are drawn from, which no difference between math libraries
reaches. A point that was drawn before is drawn anew, as long as there are others.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import Key, Reporter, Tree, dotted
from hpcrun.compile.source.problems import Problems, did_you_mean, kind_of, listing
from hpcrun.compile.sweep import draws, foreign_forms
from hpcrun.compile.sweep.draws import is_number, is_whole, mistake_of, tidy
from hpcrun.compile.sweep.point import Assignment, Point
from hpcrun.text import plural

MOST = 100_000
_AS_IN = "as in keys: {lr: {loguniform: [1e-5, 1e-2]}}"
_OTHER_NAMES = {"logspace": "geomspace", "arange": "range"}


def parse(key: Key, values: Any, place: Key, report: Reporter) -> list[Assignment]:
    """Return what a swept key gets, from the values at ``place``; empty after a problem.

    Accepted are a list, ``{choices: {label: value}}``, ``{range: [start, stop, step]}`` with whole
    numbers as Python's, ``{linspace: [start, stop, count]}`` and ``{geomspace: [start, stop,
    count]}`` as numpy's, both ends included.
    """
    if isinstance(values, list):
        return [assignment_at(key, one, (*place, str(at)), report) for at, one in enumerate(values)]
    form = next(iter(values), None) if isinstance(values, dict) and len(values) == 1 else None
    if form == "choices" and isinstance(values["choices"], dict):
        choices = values["choices"].items()
        return [
            assignment_at(key, one, (*place, form, name), report, name) for name, one in choices
        ]
    if form in _RANGES:
        return _range(key, str(form), values[form], (*place, str(form)), report)
    _report_form(key, values, place, report)
    return []


def assignment_at(
    key: Key, value: Any, place: Key, report: Reporter, label: str | None = None
) -> Assignment:
    """Return the assignment of the value at ``place``, which may have a label, to a key."""
    indices = range(len(value)) if isinstance(value, list) else ()
    items = tuple(report.mark((*place, str(index))) for index in indices)
    swept = value if label is None else label
    return Assignment(key, value, swept, report.mark(place), items=items)


def _report_form(key: Key, values: Any, place: Key, report: Reporter) -> None:
    """Report what is no list and no form of a grid, with what to write in its place."""
    hint = foreign_forms.grid_hint(dotted(key), values)
    if not isinstance(values, dict):
        hint = hint or (f"write [{values}]" if values is not None else None)
        report.at(place, f"found {kind_of(values)}; accepted is a list of values", hint)
        return
    form = str(next(iter(values), None))
    near = f"did you mean '{_OTHER_NAMES[form]}'?" if form in _OTHER_NAMES else None
    report.at(
        place,
        f"found {kind_of(values)} of {listing(values) or 'nothing'}; accepted are a list of "
        f"values, {{choices: {{label: value}}}} and {listing(_RANGES.values())}",
        near or hint or did_you_mean(form, ("choices", *_RANGES)),
    )


def parse_typed(listed: str, name: str, directory: Path, problems: Problems) -> Tree | None:
    """Return the values of ``--sweep name=a,b``, or the one form that they are, as ``value``.

    None where they are wrong.
    """
    parsed = yaml_reader.parse_value(f"[{listed}]", name, directory, problems)
    if parsed is None or len(given := parsed.data["value"]) != 1 or not is_form(given[0]):
        return parsed
    marks = {("value", *key[2:]): mark for key, mark in parsed.marks.items()}
    return Tree({"value": given[0]}, marks)


def is_form(values: Any) -> bool:
    """Return whether a mapping is one of choices or of a range."""
    forms = {"choices", *_RANGES}
    return isinstance(values, dict) and len(values) == 1 and not forms.isdisjoint(values)


_RANGES = {
    "range": "{range: [start, stop, step]}",
    "linspace": "{linspace: [start, stop, count]}",
    "geomspace": "{geomspace: [start, stop, count]}",
}


def _range(key: Key, form: str, bounds: Any, place: Key, report: Reporter) -> list[Assignment]:
    found = f"{bounds}"
    numbers: list[Any] = []
    if not isinstance(bounds, list):
        found = kind_of(bounds)
    elif not all(map(is_number, bounds)):
        pass
    elif form == "range":
        if 1 <= len(bounds) <= 3 and all(map(is_whole, bounds)) and bounds[2:] != [0]:
            numbers = list(range(*bounds)[: MOST + 1])
            found += ", which holds no number"
        else:
            found += ", which are not one to three whole numbers with a step"
    elif len(bounds) == 3 and is_whole(bounds[2]) and 1 <= bounds[2] <= MOST:
        if form == "geomspace" and min(bounds[:2]) <= 0:
            found += ", whose ends are not both above 0"
        else:
            numbers = _SPACES[form](*bounds)
    if not numbers:
        report.at(place, f"found {found}; accepted is {_RANGES[form]}")
    mark = report.mark(place)
    return [Assignment(key, number, number, mark) for number in numbers]


def _linspace(start: float, stop: float, count: int) -> list[Any]:
    if count == 1:
        return [start]
    found = [tidy(start + (stop - start) * index / (count - 1)) for index in range(count)]
    return _whole_if_all(found, start, stop)


def _geomspace(start: float, stop: float, count: int) -> list[Any]:
    ratio = math.log(stop / start)
    between = (tidy(start * math.exp(ratio * at / (count - 1))) for at in range(1, count - 1))
    found = [start, *between, stop] if count > 1 else [start]
    return _whole_if_all(found, start, stop)


def _whole_if_all(found: list[float], start: float, stop: float) -> list[Any]:
    whole = is_whole(start) and is_whole(stop) and all(float(one).is_integer() for one in found)
    return [int(one) if whole else float(one) for one in found]


_SPACES: dict[str, Callable[..., list[Any]]] = {"linspace": _linspace, "geomspace": _geomspace}


_FORMS = {
    "uniform": "{uniform: [low, high]}",
    "loguniform": "{loguniform: [low, high]}",
    "int_uniform": "{int_uniform: [low, high]}",
    "int_loguniform": "{int_loguniform: [low, high]}",
    "normal": "{normal: [mean, deviation]}",
    "choices": "{choices: {label: value}}",
}

# Draws beyond the samples: so many of each, and so many values together.
_MOST_AGAIN, _MOST_VALUES = 10, 200_000


class Distribution(NamedTuple):
    """The distribution of one key."""

    inverse: Callable[[float], tuple[Assignment, Hashable]]
    """From a number in (0, 1) to the key's value, and what is equal for equal values."""
    size: int | None
    """The number of its values; None for what is continuous."""


def samples(block: dict[str, Any], place: Key, report: Reporter) -> list[Point]:
    """Return the points drawn, all of them different; none after a problem.

    They are fewer than asked for where the keys have no more values, or where so many draws find no
    others; that is noted. ``block`` is ``random``, its ``keys`` written in full.
    """
    if not 1 <= block["samples"] <= MOST:
        # 0 is the default.
        found = f"found {block['samples']}" if block["samples"] else "is missing"
        found += f"; accepted is a whole number from 1 to {MOST}"
        report.at((*place, "samples"), found, "how many are drawn, as in samples: 20")
        return []
    if not block["keys"]:
        report.at(
            (*place, "keys"), "is empty; accepted is a mapping of keys to distributions", _AS_IN
        )
        return []
    wanted = block["samples"]
    columns: list[Iterator[tuple[Assignment, Hashable]]] = []
    space: int | None = 1
    for dimension, (name, form) in enumerate(block["keys"].items()):
        key = tuple(name.split("."))
        distribution = _distribution(key, form, (*place, "keys", name), report)
        stream = _stream(block["method"], f"{block['seed']}:{name}", dimension)
        if distribution is not None:
            columns.append(map(distribution.inverse, stream))
            space = space * distribution.size if space and distribution.size else None
    if len(columns) < len(block["keys"]):
        return []
    points, drawn = _different(zip(*columns, strict=True), wanted, space, len(columns))
    if len(points) < wanted:
        number = plural(len(points), "run", ",")
        if len(points) == space:
            message = (
                f"its keys have {plural(space, 'point', ',')} in all: {number}, not {wanted:,}"
            )
            hint = f"`grid` lists them; `samples: {space}` asks for no more"
        else:
            message = f"{drawn:,} draws found {len(points):,} different points: {number}"
            hint = "the others are too rare; a `grid` has them all"
        report.note((*place, "samples"), f"{wanted:,} were asked for, and {message}", hint)
    return points


def _different(
    draws: Iterator[tuple[tuple[Assignment, Hashable], ...]],
    wanted: int,
    space: int | None,
    keys: int,
) -> tuple[list[Point], int]:
    """Return different points in the order drawn, and the number of draws."""
    most = wanted + min(_MOST_AGAIN * wanted + 100, _MOST_VALUES // keys)
    enough = wanted if space is None else min(wanted, space)
    found: dict[tuple[Hashable, ...], Point] = {}
    drawn = 0
    while len(found) < enough and drawn < most:
        drawn += 1
        point, values = zip(*next(draws), strict=True)
        found.setdefault(values, point)
    return list(found.values()), drawn


def _stream(method: str, seed: str, dimension: int) -> Iterator[float]:
    generator = random.Random(seed)
    if method == "uniform":
        while True:
            yield draws.inside(generator.random())
    for index in count(1):
        yield draws.halton(index, dimension, seed)


def _distribution(key: Key, form: Any, place: Key, report: Reporter) -> Distribution | None:
    """Return the distribution that a form describes; None after a problem."""
    mark = report.mark(place)
    if isinstance(form, list):
        form = {"choices": form}
    name = next(iter(form), None) if isinstance(form, dict) and len(form) == 1 else None
    if name not in _FORMS:
        found = f"{kind_of(form)} of {listing(form)}" if isinstance(form, dict) else kind_of(form)
        message = f"found {found}; accepted are a list of values and {listing(_FORMS.values())}"
        hint = foreign_forms.random_hint(dotted(key), form)
        if is_form(form) and "choices" not in form:
            grid = f"sweep: {{grid: {{{dotted(key)}: {foreign_forms.form_text(form)}}}}}"
            hint = f"steps are of a grid: {grid}"
        report.at(place, message, hint or did_you_mean(str(name or form), _FORMS))
        return None
    bounds = form[name]
    if name == "choices":
        return _choice(key, bounds, place, report)
    mistake = mistake_of(str(name), bounds)
    if mistake:
        turned = f"write {{{name}: {bounds[::-1]}}}" if "below the second" in mistake else None
        report.at((*place, str(name)), f"{mistake}; accepted is {_FORMS[str(name)]}", turned)
        return None
    quantile = draws.quantile(str(name), bounds)

    def inverse(drawn: float) -> tuple[Assignment, Hashable]:
        value = quantile(drawn)
        return Assignment(key, value, value, mark), value

    is_whole_number = str(name).startswith("int_")
    return Distribution(inverse, bounds[1] - bounds[0] + 1 if is_whole_number else None)


def _choice(key: Key, options: Any, place: Key, report: Reporter) -> Distribution | None:
    if not isinstance(options, (dict, list)) or not options:
        report.at(place, f"found {options!r}; accepted is at least one value")
        return None
    found = parse(
        key, {"choices": options} if isinstance(options, dict) else options, place, report
    )
    values = [(one, json.dumps(one.swept, sort_keys=True)) for one in found]
    different = len({text for _, text in values})
    return Distribution(lambda drawn: values[int(drawn * len(values))], different)
