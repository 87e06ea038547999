"""Typed views of a frozen spec, of this version's plans and of others'."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from hpcrun.state.plan import Entry, RunPlan
from hpcrun.state.spec.blocks import SpecBlocks
from hpcrun.state.spec.experiment import Environment, Objective, Recovery, Resources, Spec


def _run(**spec: object) -> RunPlan:
    return RunPlan(0, "identity", "", {}, Entry("command"), spec)


def test_a_whole_spec_comes_back_as_it_was() -> None:
    spec = Spec(objective=Objective("accuracy", "max"), recovery=Recovery(shrink=True, in_place=0))
    run = _run(**dataclasses.asdict(spec))
    for name in ("resources", "checkpoint", "recovery", "environment", "notify", "telemetry"):
        assert getattr(run, name) == getattr(spec, name)
    assert run.objective == spec.objective
    assert run.code == spec.code
    assert run.recovery is run.recovery


def test_what_another_version_wrote() -> None:
    blocks = SpecBlocks({"resources": {"nodes": 2, "of_tomorrow": 1}, "environment": None})
    assert blocks.resources == Resources(nodes=2)
    assert blocks.environment == Environment()
    assert blocks.objective is None
    # What did not exist yet is off.
    assert blocks.recovery == Recovery(hang_after=None, warm_after=None)
    assert blocks.telemetry.every is None


def test_a_name_that_is_no_block() -> None:
    run: Any = _run()
    with pytest.raises(AttributeError, match="RunPlan has no attribute 'recoverry'"):
        assert run.recoverry
    assert not hasattr(run, "tracking")


def test_a_replaced_spec_is_read_anew() -> None:
    run = _run(resources={"nodes": 4, "spare_nodes": 1}, recovery={"shrink": True})
    assert (run.all_nodes, run.outlives_nodes) == (5, True)
    fewer = dataclasses.replace(run, spec={"resources": {"nodes": 1}})
    assert (fewer.all_nodes, fewer.outlives_nodes) == (1, False)


def test_readers_that_ask_for_no_block_are_spared_the_import() -> None:
    code = (
        "import sys, hpcrun.state.plan_file; "
        "sys.exit('hpcrun.state.spec.experiment' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_runs_share_the_view_of_a_block_that_they_share() -> None:
    shared = {"nodes": 2}
    one, other = SpecBlocks({"resources": shared}), SpecBlocks({"resources": shared})
    assert one.resources is other.resources
    shared["nodes"] = 3
    assert SpecBlocks({"resources": shared}).resources.nodes == 3
    assert SpecBlocks({"resources": {"nodes": 4}}).resources.nodes == 4
    assert one.resources.nodes == 2
