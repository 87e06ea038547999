"""What is done for each point of a sweep, counted: time on a shared machine says little."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hpcrun.cli import plan
from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze

# Calls of functions, built-in ones too, for a point of 20 keys with 2 interpolations: they were
# 271 and 179 as this was written, and 819 and 1,524 when each point had all done anew.
_TO_COMPILE, _TO_SHOW = 345, 220


def test_a_point_takes_few_calls(project: Any) -> None:
    keys = "".join(f"  k{number}: {number}\n" for number in range(18))
    project.write("work.py", "")
    spec = project.write(
        "sweep.yaml",
        "cluster: slurm\nentry: work.py\nenvironment: {python: /opt/python/bin/python}\n"
        f"config:\n{keys}  a: ${{config.k0}}/x\n  b: ${{config.k1}}/x\n"
        "sweep: {grid: {config.k0: [0], config.k1: {range: [10]}}}\n",
    )

    def frozen(points: int) -> Any:
        return freeze(compile_spec(spec, (), (f"config.k0={{range: [{points // 10}]}}",)))

    frozen(10)
    few, many = (_calls(lambda points=points: frozen(points)) for points in (50, 250))
    assert (many - few) / 200 < _TO_COMPILE
    plans = [frozen(points) for points in (50, 250)]
    few, many = (_calls(lambda one=one: [*plan.lines(one, "/root")]) for one in plans)
    assert (many - few) / 200 < _TO_SHOW


def _calls(function: Callable[[], object]) -> int:
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found
