"""The values that a swept key takes: lists, labelled choices, and ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Mark, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.compile.source.yaml_reader import kind_of

MOST = 100_000
_DIGITS = 12
_OTHER_NAMES = {"logspace": "geomspace", "arange": "range", "values": "choices"}


@dataclass(frozen=True)
class Given:
    """One value of a swept key.

    Attributes
    ----------
    value
        What the key gets.
    label
        What a choice is called; None for a plain value.
    mark
        Where it was written.
    """

    value: Any
    label: str | None
    mark: Mark


def given(values: Any, place: Key, tree: Tree, problems: Problems) -> list[Given]:
    """The values of the key at ``place`` in their order; none where a mistake was noted.

    Accepted are a list, ``{choices: {label: value}}``, ``{range: [start, stop, step]}`` with whole
    numbers as Python's, ``{linspace: [start, stop, count]}`` and ``{geomspace: [start, stop,
    count]}`` as numpy's, both ends included.
    """
    if isinstance(values, list):
        return [
            Given(value, None, tree.mark((*place, str(index))))
            for index, value in enumerate(values)
        ]
    if not isinstance(values, dict):
        hint = f"write [{values}]" if values is not None else None
        problems.at(tree, place, f"found {kind_of(values)}; accepted is a list of values", hint)
        return []
    form = next(iter(values), None)
    if len(values) == 1 and form == "choices" and isinstance(values["choices"], dict):
        return [
            Given(value, label, tree.mark((*place, "choices", label)))
            for label, value in values["choices"].items()
        ]
    if len(values) == 1 and form in _RANGES:
        return _range(str(form), values[form], (*place, str(form)), tree, problems)
    near = _OTHER_NAMES.get(str(form))
    hint = f"did you mean '{near}'?" if near else did_you_mean(str(form), ("choices", *_RANGES))
    problems.at(
        tree,
        place,
        f"found {kind_of(values)} of {listing(values) or 'nothing'}; accepted are a list of "
        f"values, {{choices: {{label: value}}}} and {listing(_RANGES.values())}",
        hint,
    )
    return []


def is_form(values: Any) -> bool:
    """Whether a mapping is one of choices or of a range."""
    return (
        isinstance(values, dict) and len(values) == 1 and bool({"choices", *_RANGES} & set(values))
    )


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def tidy(value: float, digits: int = _DIGITS) -> float:
    """A number without the noise of its last bits: 0.30000000000000004 is 0.3."""
    return float(f"{value:.{digits}g}")


_RANGES = {
    "range": "{range: [start, stop, step]}",
    "linspace": "{linspace: [start, stop, count]}",
    "geomspace": "{geomspace: [start, stop, count]}",
}


def _range(form: str, bounds: Any, place: Key, tree: Tree, problems: Problems) -> list[Given]:
    accepted = _RANGES[form]

    def refuse(what: str) -> list[Given]:
        problems.at(tree, place, f"found {what}; accepted is {accepted}")
        return []

    if not isinstance(bounds, list) or not all(map(is_number, bounds)):
        return refuse(kind_of(bounds) if not isinstance(bounds, list) else f"{bounds}")
    if form == "range":
        if not 1 <= len(bounds) <= 3 or not all(map(is_whole, bounds)) or bounds[2:] == [0]:
            return refuse(f"{bounds}, which are not one to three whole numbers with a step")
        numbers: list[Any] = list(range(*bounds)[: MOST + 1])
    else:
        if len(bounds) != 3 or not is_whole(bounds[2]) or not 1 <= bounds[2] <= MOST:
            return refuse(f"{bounds}")
        if form == "geomspace" and min(bounds[:2]) <= 0:
            return refuse(f"{bounds}, whose ends are not both above 0")
        numbers = _SPACES[form](*bounds)
    if not numbers:
        return refuse(f"{bounds}, which holds no number")
    mark = tree.mark(place)
    return [Given(number, None, mark) for number in numbers]


def _linspace(start: float, stop: float, count: int) -> list[Any]:
    if count == 1:
        return [start]
    found = [tidy(start + (stop - start) * index / (count - 1)) for index in range(count)]
    whole = is_whole(start) and is_whole(stop) and all(one.is_integer() for one in found)
    return [int(one) for one in found] if whole else found


def _geomspace(start: float, stop: float, count: int) -> list[Any]:
    ratio = math.log(stop / start)
    found = [
        start
        if index == 0
        else stop
        if index == count - 1
        else tidy(start * math.exp(ratio * index / (count - 1)))
        for index in range(count)
    ]
    whole = is_whole(start) and is_whole(stop) and all(float(one).is_integer() for one in found)
    return [int(one) for one in found] if whole else [float(one) for one in found]


_SPACES: dict[str, Callable[..., list[Any]]] = {"linspace": _linspace, "geomspace": _geomspace}
