"""Values that the runs of a search get as they start: what is frozen of their spec until then.

Some points of the space are compiled at submission like those of a grid, which checks all that can
be wrong. What follows from a value is known from the interpolation graph, so that a job completes a
run of its own by plain data, without a look at files or the environment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun.compile.freeze import CompiledRun
from hpcrun.compile.run_template import RunTemplate
from hpcrun.compile.source.marked_tree import Key, dotted, get_at
from hpcrun.compile.source.problems import Reporter, kind_of, listing
from hpcrun.compile.sweep import foreign_forms
from hpcrun.compile.sweep.bounds import is_number, is_whole, mistake_of
from hpcrun.compile.sweep.late_run import LATE, complete
from hpcrun.compile.sweep.point import Assignment, Point
from hpcrun.compile.sweep.resolver import Resolver
from hpcrun.compile.sweep.values import MOST
from hpcrun.state.plan import SEARCH
from hpcrun.text import plural, short_ends

_PLACE: Key = ("sweep", "search")
_BOUNDS = ("uniform", "loguniform", "int", "int_loguniform")
_CHOICE = "choice"
# What no test has run a search with.
_REFUSED = (
    "environment.container.image",
    "environment.container.wrapper",
    "environment.lock",
    "roles",
)
FORMS = (
    "{loguniform: [1e-5, 1e-1]}, {uniform: [0, 1]}, {int: [1, 8]}, {int_loguniform: [1, 512]}, "
    "{choice: [a, b]} or a list"
)


class Space(NamedTuple):
    """The checked space of a search: key -> the name of a distribution and its bounds."""

    keys: Mapping[Key, tuple[str, list[Any]]]
    samples: Sequence[Point]
    """Points that have every bound and every choice."""


def parse(
    block: dict[str, Any], may_be_swept: Callable[[Key, Key], bool], report: Reporter
) -> Space:
    """Check the block of a search; empty after a problem.

    ``may_be_swept`` reports, for a key and the place where it is written, why it may not be.
    """
    report.at_least(dotted((*_PLACE, "trials")), block["trials"], 1)
    if block["trials"] > MOST:
        report.at((*_PLACE, "trials"), f"found {block['trials']:,}; accepted are {MOST:,}")
    if block["parallel"] is not None:
        report.at_least(dotted((*_PLACE, "parallel")), block["parallel"], 1)
    if not block["space"]:
        hint = f"as in space: {{config.lr: {{loguniform: [1e-5, 1e-1]}}}}; forms are {FORMS}"
        report.at((*_PLACE, "space"), "is missing: the keys to search and their bounds", hint)
    keys: dict[Key, tuple[str, list[Any]]] = {}
    for name, given in block["space"].items():
        key, place = tuple(name.split(".")), (*_PLACE, "space", name)
        if not may_be_swept(key, place):
            continue
        if key[0] != "config":
            found = "a search chooses values of config"
            report.at(place, found, "refer to one with ${config.NAME}, or sweep a grid of this key")
        elif (form := _form(given, place, report)) is not None:
            keys[key] = form
    for index, point in enumerate(block["first"]):
        _check_point(point, keys, (*_PLACE, "first", str(index)), report)
    count = max((len(bounds) for _, bounds in keys.values()), default=0)
    samples = [
        tuple(
            Assignment(key, value, value, report.mark((*_PLACE, "space", dotted(key))))
            for key, (_, bounds) in keys.items()
            for value in [bounds[min(index, len(bounds) - 1)]]
        )
        for index in range(count)
    ]
    return Space(keys, samples)


def _form(given: Any, place: Key, report: Reporter) -> tuple[str, list[Any]] | None:
    form = next(iter(given), None) if isinstance(given, dict) and len(given) == 1 else None
    if isinstance(given, list):
        form, given = _CHOICE, {_CHOICE: given}
    if form == _CHOICE:
        values = given[form]
        if not isinstance(values, list) or len(values) < 2:
            report.at(place, "a choice is a list of two values or more")
        elif any(isinstance(one, (list, dict)) for one in values):
            report.at(place, "a choice has plain values", "choose among names, for the program")
        elif len({json.dumps(one) for one in values}) < len(values):
            report.at(place, "a value is given twice", "remove one")
        else:
            return form, values
        return None
    if form not in _BOUNDS:
        found = f"{kind_of(given)}" if form is None else f"{{{form}: …}}"
        own = foreign_forms.own_form(given)
        hint = f"write {place[-1]}: {own[1].replace('int_uniform', 'int')}" if own else None
        report.at(place, f"found {found}; accepted are {FORMS}", hint)
        return None
    name = "int_uniform" if form == "int" else str(form)
    if mistake := mistake_of(name, given[form]):
        report.at(place, f"{mistake}; accepted is {{{form}: [low, high]}}")
        return None
    return str(form), given[form]


def _check_point(
    point: Mapping[str, Any],
    keys: Mapping[Key, tuple[str, list[Any]]],
    place: Key,
    report: Reporter,
) -> None:
    names = {dotted(key): form for key, form in keys.items()}
    if missing := [name for name in names if name not in point]:
        report.at(place, f"has no value of {listing(missing)}", "give each key of the space one")
    if more := [name for name in point if name not in names]:
        report.at(place, f"has {listing(more)}, which the space does not have", "remove it")
    for name, (form, bounds) in names.items():
        if name not in point:
            continue
        value, inside = point[name], (*place, name)
        if form == _CHOICE:
            fits = json.dumps(value) in map(json.dumps, bounds)
        else:
            is_right = is_whole(value) if form.startswith("int") else is_number(value)
            fits = is_right and bounds[0] <= value <= bounds[1]
        if not fits:
            report.at(inside, f"found {value!r}, which is not in {{{form}: {bounds}}}")


def freeze(
    runs: Sequence[CompiledRun],
    space: Space,
    block: dict[str, Any],
    resolve: Resolver,
    template_of: Callable[[Point], RunTemplate],
    report: Reporter,
) -> list[CompiledRun]:
    """Return a run for each trial, without values, from the compiled samples of the space."""
    first = runs[0]
    place = (*_PLACE, "space")
    if first.spec["objective"] is None:
        hint = "as in objective: {metric: eval/loss, mode: min}"
        report.at(_PLACE, "needs the objective that is searched for", hint)
        return []
    nodes = resolve.following(space.samples[0])
    if nodes is None:
        found = "what follows from these keys goes through resolvers, relative or nested ${…}"
        report.at(place, found, "refer to them by plain ${config.NAME}")
        return []
    refused = [key for key in _REFUSED if get_at(first.spec, tuple(key.split(".")))]
    if refused:
        found = f"does not go together with {listing(refused)}: that is not tested"
        report.at(_PLACE, found, "leave it out, or sweep a grid")
        return []
    template = template_of(space.samples[0])
    assert template.located is not None
    located = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(template.located).items()}
    frozen = {
        "space": {dotted(key): {form: bounds} for key, (form, bounds) in space.keys.items()},
        "sampler": block["sampler"],
        "seed": block["seed"],
        "first": block["first"],
        "prune": block["prune"],
        "upper": {dotted(one.key): one.value for one in space.samples[-1]},
        "follows": [node.to_data() for node in nodes],
        "located": located,
        "root": str(template.root),
        "referred": sorted(template.referred),
        "framework": template.framework,
        "recipe": template.recipe,
    }
    spec = {**first.spec, SEARCH: json.loads(json.dumps(frozen))}
    if differing := _not_reached(replace(first, spec=spec), runs, space):
        hint = f"only {listing(LATE)} may follow from what is chosen, value by value"
        report.at(place, f"{listing(differing)} would change with these keys", hint)
        return []
    # No program takes these names for values.
    names = short_ends(map(dotted, space.keys))
    shown = complete(replace(first, spec=spec), {name: f"<{names[name]}>" for name in names})
    same = json.dumps([[run.identity for run in runs], frozen["space"]])
    spec = {**spec, **shown.spec}
    named = f"{plural(block['trials'], 'run')} get values of {listing([*names.values()])}"
    report.note(_PLACE, f"{named}, each as it starts")
    return [
        CompiledRun(
            hashlib.sha256(f"{same}{index}".encode()).hexdigest(),
            f"trial {index}",
            {},
            shown.entry,
            spec,
        )
        for index in range(block["trials"])
    ]


def _not_reached(late: CompiledRun, runs: Sequence[CompiledRun], space: Space) -> list[str]:
    """Return the parts of the compiled samples that `complete` does not make of their values."""
    found: dict[str, None] = {}
    for run, sample in zip(runs, space.samples, strict=True):
        point = complete(late, {dotted(one.key): one.value for one in sample})
        spec = {**late.spec, **point.spec}
        found |= dict.fromkeys(name for name in run.spec if run.spec[name] != spec[name])
        found |= {"entry": None} if point.entry != run.entry else {}
    return [*found]
