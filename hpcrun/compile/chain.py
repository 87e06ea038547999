"""Chains of experiments that wait for each other: ``depends_on``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpcrun.compile.freeze import Compiled, Prerequisite
from hpcrun.compile.source.marked_tree import Reporter
from hpcrun.compile.spec import schema
from hpcrun.compile.sweep.point import Point
from hpcrun.errors import UsageError
from hpcrun.host import is_there
from hpcrun.state.plan import Dependence
from hpcrun.state.spec.experiment import Dependency, Spec

MOST = 50


def spelled_out(value: Any) -> Any:
    """Return ``depends_on`` as a list of mappings, however short it was written."""
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    # What is no path is refused as a text, too.
    return [{"spec": str(item)} if isinstance(item, (int, str)) else item for item in items]


def prerequisites(report: Reporter, points: Iterable[Point]) -> tuple[Prerequisite, ...]:
    """Return the experiments that a spec depends on; checks that their files exist, unread."""
    if any(option.key[0] == "depends_on" for point in points for option in point):
        report.at("depends_on", "cannot be swept: an experiment follows others as a whole")
    checker = schema.SchemaChecker(report, Spec)
    found = []
    for index, item in enumerate(report.tree.data["depends_on"]):
        own = checker.block(item, Dependency, ("depends_on", str(index)))
        at = report.below(f"depends_on.{index}")
        path = at.mark().path(own["spec"])
        if own["spec"].isdecimal():
            wrong = f"found {own['spec']}; accepted is a spec's path, which is submitted before"
            job = f"resources: {{sbatch: {{dependency: 'afterok:{own['spec']}'}}}}"
            at.at("spec", wrong, f"to wait for a job: {job}")
        elif own["spec"] and not is_there(path.is_file):
            at.no_file("spec", own["spec"], path, "*.y*ml")
        if own["each"] and own["when"] == "end":
            hint = "Slurm has task wait for task until its success alone"
            at.at("each", "found true; accepted with when: end is false", hint)
        found.append(Prerequisite(path, own["when"], own["each"]))
    return tuple(found)


def before(last: Compiled, compile_spec: Callable[[Path], Compiled]) -> list[Compiled]:
    """Compile all experiments that come before one, each after those that it depends on.

    Raises SpecError or UsageError if a spec is wrong, or they form a circle, have different roots
    or executors, or share a name.
    """
    done: dict[str, Compiled] = {}

    def visit(compiled: Compiled, trail: tuple[str, ...]) -> None:
        for need in compiled.prerequisites:
            if need.file in trail:
                circle = " -> ".join(map(os.path.basename, (*trail, need.file)))
                raise UsageError(f"depends_on goes in a circle: {circle}")
            if len(trail) + len(done) > MOST:
                raise UsageError(
                    f"{last.name} depends on more than {MOST} experiments, one after the other",
                    hint="submit those that come first by themselves",
                )
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
    """An experiment whose runs have numbers."""

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """Return the experiment's name and its runs' numbers."""


Result = TypeVar("Result", bound=Numbered)


def in_order(
    chain: Iterable[Compiled], act: Callable[[Compiled, tuple[Dependence, ...]], Result]
) -> Iterator[Result]:
    """Yield the result of ``act`` for each experiment of a `hpcrun.compile.compile_chain`.

    It is called with an experiment and what that waits for, once all before it have their numbers.
    """
    numbers: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in chain:
        needs = one.prerequisites
        waits = (Dependence(*numbers[need.file], need.when, need.each) for need in needs)
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
    if one.executor != last.executor:
        raise UsageError(
            f"{one.name} goes to the cluster profile {one.cluster['name']!r} and {last.name}, "
            f"which depends on it, to {last.cluster['name']!r}",
            hint="jobs wait for jobs of the same Slurm; name one with cluster=NAME",
        )
