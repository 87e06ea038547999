"""The frozen plan: what is written is what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun import records
from hpcrun.errors import UsageError
from hpcrun.plan import Array, Entry, Plan, RunPlan


def _run(number: int, **resources: Any) -> RunPlan:
    spec = {"resources": {"nodes": 1, "ntasks_per_node": None, "gpus_per_node": 0, **resources}}
    entry = Entry("script", file="train.py", argv=("--lr=1", "${hpcrun:directory}"))
    return RunPlan(number, f"id{number}", "lr=1", {"config.lr": 1.0}, entry, spec)


def _plan() -> Plan:
    runs = (_run(4), _run(2, nodes=2))
    arrays = (Array((4,), "#!/bin/sh\n", 0.0), Array((2, 9), "", 1.5))
    cluster = {"executor": "local", "fabric": {}}
    return Plan("study", "/s/x.yaml", "/s", "sub", cluster, 8, runs, arrays)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    plan = _plan()
    plan.write(tmp_path / "plan.json")
    read = Plan.read(tmp_path / "plan.json")
    assert read == plan
    assert isinstance(read.runs[0].entry.argv, tuple)
    assert isinstance(read.arrays[1].runs, tuple)


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _plan().write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_runs_are_found_by_number() -> None:
    assert _plan().run(2).identity == "id2"
    with pytest.raises(UsageError, match="study: there is no run 7"):
        _plan().run(7)


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    data = {**_plan().to_data(), "format": 99}
    records.write_json(tmp_path / "plan.json", data)
    with pytest.raises(UsageError, match="format 99, this hpcrun reads 1"):
        Plan.read(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("resources", "ranks", "world"),
    [
        ({}, 1, 1),
        ({"gpus_per_node": 8, "nodes": 2}, 8, 16),
        ({"ntasks_per_node": 3, "nodes": 2}, 3, 6),
        ({"ntasks_per_node": 2, "gpus_per_node": 4}, 2, 2),
    ],
)
def test_one_rank_a_gpu_unless_told_otherwise(
    resources: dict[str, Any], ranks: int, world: int
) -> None:
    run = _run(1, **resources)
    assert (run.ranks_per_node, run.world_size) == (ranks, world)


def test_one_run_is_no_array() -> None:
    single, several = _plan().arrays
    assert (single.is_array, several.is_array) == (False, True)
