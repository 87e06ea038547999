"""Experiments that follow each other: ``depends_on``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpcrun.compile.freeze import Compiled, Need
from hpcrun.compile.source.marked_tree import Key, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean
from hpcrun.compile.spec import schema
from hpcrun.compile.sweep.point import Point
from hpcrun.errors import UsageError
from hpcrun.state.plan import Dependence
from hpcrun.state.spec.experiment import Dependency, Spec

_KEY: Key = ("depends_on",)


def spelled_out(value: Any) -> Any:
    """``depends_on`` as a list of mappings, where it was written shorter."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    return [{"spec": item} if isinstance(item, str) else item for item in items]


def needs(tree: Tree, points: Iterable[Point], problems: Problems) -> tuple[Need, ...]:
    """What a spec depends on; its files are looked for, not read."""
    if any(option.key[0] == _KEY[0] for point in points for option in point):
        problems.at(tree, _KEY, "cannot be swept: an experiment follows others as a whole")
    checker = schema.Checker(tree, Spec, problems)
    found = []
    for index, item in enumerate(tree.data["depends_on"]):
        key: Key = (*_KEY, str(index))
        own = checker.block(item, Dependency, key)
        name = own["spec"]
        path = Path(os.path.normpath(tree.mark(key).directory / Path(name).expanduser()))
        if not path.is_file():
            siblings = sorted(one.name for one in path.parent.glob("*.y*ml"))
            message = f"there is no file {name!r} in {path.parent}"
            problems.at(tree, (*key, "spec"), message, did_you_mean(path.name, siblings))
        if own["each"] and own["when"] == "end":
            message = "found true; accepted with when: end is false"
            hint = "Slurm has task wait for task until its success alone"
            problems.at(tree, (*key, "each"), message, hint)
        found.append(Need(path, own["when"], own["each"]))
    return tuple(found)


def before(last: Compiled, compile_spec: Callable[[Path], Compiled]) -> list[Compiled]:
    """All experiments that come before one, each after those that it depends on.

    Parameters
    ----------
    compile_spec
        Compiles the spec of one of them.

    Raises
    ------
    SpecError, UsageError
        One is wrong; they form a circle, have different roots or executors, or one name.
    """
    done: dict[str, Compiled] = {}

    def visit(compiled: Compiled, trail: tuple[str, ...]) -> None:
        for need in compiled.needs:
            if need.file in trail:
                circle = " -> ".join(map(os.path.basename, (*trail, need.file)))
                raise UsageError(f"depends_on goes in a circle: {circle}")
            if need.file not in done:
                found = compile_spec(need.spec)
                visit(found, (*trail, need.file))
                done[need.file] = found

    visit(last, (last.file,))
    for one in done.values():
        _check(one, last)
    names = [one.name for one in (*done.values(), last)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two specs that depend on each other are both named {name!r}")
    return list(done.values())


class Numbered(Protocol):
    """What an experiment has become once its runs have numbers."""

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""


Result = TypeVar("Result", bound=Numbered)


def in_order(
    chain: Iterable[Compiled], act: Callable[[Compiled, tuple[Dependence, ...]], Result]
) -> Iterator[Result]:
    """Yield the result of ``act`` for each experiment of a chain, one after another.

    Parameters
    ----------
    chain
        As `hpcrun.compile.compile_chain` returns it.
    act
        Called with an experiment and what it waits for, once all before it have their numbers.
    """
    numbers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in chain:
        waits = (Dependence(*numbers[need.file], need.when, need.each) for need in one.needs)
        result = act(one, tuple(waits))
        numbers[one.file] = result.numbers
        yield result


def _check(one: Compiled, last: Compiled) -> None:
    if one.root != last.root:
        raise UsageError(
            f"{one.name} lives under {one.root} and {last.name}, which depends on it, under "
            f"{last.root}",
            hint="name one root with --root",
        )
    if one.cluster["executor"] != last.cluster["executor"]:
        raise UsageError(
            f"{one.name} goes to the cluster profile {one.cluster['name']!r} and {last.name}, "
            f"which depends on it, to {last.cluster['name']!r}",
            hint="jobs wait for jobs of the same Slurm; name one with cluster=NAME",
        )
