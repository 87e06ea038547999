"""Values that may change without making another run: ``extendable``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from hpcrun.compile import identity
from hpcrun.compile.freeze import Compiled, CompiledRun
from hpcrun.compile.source.marked_tree import Key, SourceMark, dotted
from hpcrun.compile.source.problems import Reporter
from hpcrun.compile.sweep.point import Point
from hpcrun.compile.sweep.references import (
    Interpolation,
    dependents,
    interpolations,
    may_name,
    overlap,
)
from hpcrun.compile.target.role_layout import computed
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.role_plan import ROLES
from hpcrun.text import whole_number

_MAY = ("config", "deepspeed")


def keys(
    report: Reporter, points: Iterable[Point], exists: Callable[[Key, SourceMark], bool]
) -> tuple[Key, ...]:
    """Return the keys that ``extendable`` names, and those whose values refer to them."""
    data = report.tree.data
    named = data.get("extendable")
    if not named or not isinstance(named, list):
        return ()
    found: list[Key] = []
    swept = {one.key for point in points for one in point if not one.is_set}
    for index, text in enumerate(named):
        at = f"extendable.{index}"
        key = tuple(text.split(".")) if isinstance(text, str) else ()
        if len(key) < 2 or key[0] not in _MAY:
            report.at(at, f"found {text!r}; accepted is a full key of config or deepspeed")
        elif any(overlap(key, other) for other in swept):
            report.at(at, f"{text} is swept: each of its values is a run of its own")
        elif exists(key, report.mark(at)):
            found.append(key)
    if not found:
        return ()
    parsed = [(key, text, Interpolation.parse(key, text)) for key, text in interpolations(data)]
    following = dependents([one for _, _, one in parsed if one is not None], found) or []
    found += [one.key for one in following if one.key not in found]
    for key, text, one in parsed:
        counts = key[0] in (*_MAY, "args", "entry") and key not in found
        if one is None and counts and may_name(text, found):
            message = f"{text} may refer to an extendable key, and cannot be followed"
            report.at(key, message, f"name {dotted(key)} in extendable too")
    return tuple(found)


def known(compiled: Compiled, plans: Iterable[Plan]) -> dict[str, int]:
    """Return identity -> number of an earlier run that differs from it in such values alone."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers.update((_kin(plan, run, compiled.extendable), run.number) for run in plan.runs)
    kin = ((run.identity, _kin(compiled, run, compiled.extendable)) for run in compiled.runs)
    return {own: numbers[other] for own, other in kin if other in numbers}


def _kin(source: Compiled | Plan, run: CompiledRun | RunPlan, without: Collection[Key]) -> str:
    """Return the identity of a run without the values of some keys."""
    spec = {name: run.spec[name] for name in ("config", "deepspeed", "args", "entry")}
    spec["optimization"] = run.spec.get("optimization")
    for key in without:
        spec = _without(spec, key)
    spec["args"] = [str(each) for each in spec["args"]]
    spec["checkpoint"] = run.spec["checkpoint"]
    entry, directory = run.entry, Path(source.spec_file).parent
    digest = identity.digester(entry, Path(source.code_root), directory, spec)
    roles = computed(run.spec.get(ROLES) or {}, Path(source.code_root), directory)
    command = [*map(str, spec["entry"])] if isinstance(spec["entry"], list) else []
    return digest(command, spec["config"], run.swept, roles)


def _without(data: Any, key: Key) -> Any:
    """Return a copy without the value at the key."""
    first, rest = key[0], key[1:]
    if isinstance(data, dict) and first in data:
        if not rest:
            return {name: value for name, value in data.items() if name != first}
        return {**data, first: _without(data[first], rest)}
    index = whole_number(first)
    if isinstance(data, list) and index is not None and index < len(data):
        return [*data[:index], _without(data[index], rest) if rest else None, *data[index + 1 :]]
    return data
