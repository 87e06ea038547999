"""The values that a swept key takes: lists, labelled choices, and ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from hpcrun.compile.source.marked_tree import Key
from hpcrun.compile.source.problems import Reporter, did_you_mean, kind_of, listing
from hpcrun.compile.sweep.point import Assignment

MOST = 100_000
HYDRA = re.compile(r"(choice|range|interval|glob|sort|shuffle|tag|extend_list)\(.*\)")
"""The form in which Hydra's sweeper takes several values; here it is a text."""

_DIGITS = 12
_OTHER_NAMES = {"logspace": "geomspace", "arange": "range", "values": "choices"}


def parse(key: Key, values: Any, place: Key, report: Reporter) -> list[Assignment]:
    """Return what a swept key gets, from the values at ``place``; empty after a problem.

    Accepted are a list, ``{choices: {label: value}}``, ``{range: [start, stop, step]}`` with whole
    numbers as Python's, ``{linspace: [start, stop, count]}`` and ``{geomspace: [start, stop,
    count]}`` as numpy's, both ends included.
    """
    if isinstance(values, list):
        marks = (report.mark((*place, str(index))) for index in range(len(values)))
        return [Assignment(key, one, one, mark) for one, mark in zip(values, marks, strict=True)]
    if not isinstance(values, dict):
        hint = f"write [{values}]" if values is not None else None
        report.at(place, f"found {kind_of(values)}; accepted is a list of values", hint)
        return []
    form = next(iter(values), None)
    if len(values) == 1 and form == "choices" and isinstance(values["choices"], dict):
        return [
            Assignment(key, value, label, report.mark((*place, "choices", label)))
            for label, value in values["choices"].items()
        ]
    if len(values) == 1 and form in _RANGES:
        return _range(key, str(form), values[form], (*place, str(form)), report)
    near = _OTHER_NAMES.get(str(form))
    hint = f"did you mean '{near}'?" if near else did_you_mean(str(form), ("choices", *_RANGES))
    report.at(
        place,
        f"found {kind_of(values)} of {listing(values) or 'nothing'}; accepted are a list of "
        f"values, {{choices: {{label: value}}}} and {listing(_RANGES.values())}",
        hint,
    )
    return []


def is_form(values: Any) -> bool:
    """Return whether a mapping is one of choices or of a range."""
    forms = {"choices", *_RANGES}
    return isinstance(values, dict) and len(values) == 1 and not forms.isdisjoint(values)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def tidy(value: float, digits: int = _DIGITS) -> float:
    """Round off the noise of a number's last bits: 0.30000000000000004 is 0.3."""
    return float(f"{value:.{digits}g}")


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
