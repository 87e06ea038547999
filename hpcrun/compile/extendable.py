"""Values that may change without making another run: `extendable`, and what is made from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from hpcrun.compile import identity
from hpcrun.compile.freeze import Compiled, CompiledRun
from hpcrun.compile.source.marked_tree import Key, Mark, Tree, dotted
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.sweep.point import Point
from hpcrun.compile.sweep.references import Node, dependents, interpolations, may_name, overlap
from hpcrun.state.plan import Plan, RunPlan

_KEY: Key = ("extendable",)
_MAY = ("config", "deepspeed")


def keys(
    tree: Tree,
    points: Iterable[Point],
    exists: Callable[[Key, Mark], bool],
    problems: Problems,
) -> tuple[Key, ...]:
    """The keys that ``extendable`` names, and those whose values refer to them."""
    named = tree.data.get("extendable")
    if not named or not isinstance(named, list):
        return ()
    found: list[Key] = []
    swept = {option.key for point in points for option in point if not option.is_set}
    for index, text in enumerate(named):
        at: Key = (*_KEY, str(index))
        key = tuple(text.split(".")) if isinstance(text, str) else ()
        if len(key) < 2 or key[0] not in _MAY:
            problems.at(tree, at, f"found {text!r}; accepted is a full key of config or deepspeed")
        elif any(overlap(key, other) for other in swept):
            problems.at(tree, at, f"{text} is swept: each of its values is a run of its own")
        elif exists(key, tree.mark(at)):
            found.append(key)
    if not found:
        return ()
    strings = list(interpolations(tree.data))
    nodes = [(at, text, Node.of(at, text)) for at, text in strings]
    following = dependents([node for _, _, node in nodes if node is not None], found) or []
    found += [node.key for node in following if node.key not in found]
    for at, text, node in nodes:
        counts = at[0] in (*_MAY, "args", "entry") and at not in found
        if node is None and counts and may_name(text, found):
            message = f"{text} may refer to an extendable key, and cannot be followed"
            problems.at(tree, at, message, f"name {dotted(at)} in extendable too")
    return tuple(found)


def known(compiled: Compiled, plans: Iterable[Plan]) -> dict[str, int]:
    """Identity -> number of an earlier run, of those that differ from it in such values alone."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers.update((_kin(plan, run, compiled.extendable), run.number) for run in plan.runs)
    kin = ((run.identity, _kin(compiled, run, compiled.extendable)) for run in compiled.runs)
    return {own: numbers[other] for own, other in kin if other in numbers}


def _kin(source: Compiled | Plan, run: CompiledRun | RunPlan, without: Collection[Key]) -> str:
    """The identity of a run but for the values of those keys."""
    spec = {name: run.spec[name] for name in ("config", "deepspeed", "args", "entry")}
    for key in without:
        spec = _without(spec, key)
    return identity.begin(
        *identity.places(run.entry, Path(source.code_root), Path(source.spec_file).parent),
        [str(each) for each in spec["args"]],
        spec["deepspeed"],
        run.spec["checkpoint"].get("initialize_from"),
    )(identity.masked(run.entry, spec["entry"]), spec["config"], run.swept)


def _without(data: Any, key: Key) -> Any:
    """A copy without what is at the key."""
    first, rest = key[0], key[1:]
    if isinstance(data, dict) and first in data:
        if not rest:
            return {name: value for name, value in data.items() if name != first}
        return {**data, first: _without(data[first], rest)}
    if isinstance(data, list) and first.isdigit() and int(first) < len(data):
        index = int(first)
        return [*data[:index], _without(data[index], rest) if rest else None, *data[index + 1 :]]
    return data
