"""How many nodes a run is divided among that has lost some."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.job import fewer_nodes
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import File, Manifest
from hpcrun.state.plan import Entry, RunPlan

BATCH = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
}


def run_of(nodes: int = 4, per_node: int = 2, **changes: Any) -> RunPlan:
    spec = {
        "resources": {"nodes": nodes, "ntasks_per_node": per_node, "gpus_per_node": 0},
        "recovery": {"shrink": True},
        "deepspeed": {**BATCH, "zero_optimization": {"stage": 1}},
        **changes,
    }
    return RunPlan(3, "identity", "", {}, Entry("command", argv=("true",)), spec)


@pytest.mark.parametrize(("left", "nodes", "accumulation"), [(3, 2, 4), (2, 2, 4), (1, 1, 8)])
def test_the_largest_number_that_the_batch_divides_among(
    tmp_path: Path, left: int, nodes: int, accumulation: int
) -> None:
    found = fewer_nodes.to_fit(run_of(), RunPaths(tmp_path), left)
    assert found is not None
    assert (found.nodes, found.world_size) == (nodes, 2 * nodes)
    assert found.spec["deepspeed"] == {
        **BATCH,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": 1},
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"recovery": {}},
        {"deepspeed": {}},
        {"deepspeed": {**BATCH, "train_batch_size": 16}},
        {"deepspeed": dict.fromkeys(BATCH, "auto")},
        {"deepspeed": {**BATCH, "gradient_accumulation_steps": "auto"}},
        {"deepspeed": {"train_micro_batch_size_per_gpu": 2}},
    ],
    ids=["not asked for", "no batch to keep", "ranks share a model", "auto", "some auto", "none"],
)
def test_runs_that_keep_their_size(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert fewer_nodes.to_fit(run_of(**changes), RunPaths(tmp_path), 2) is None


def test_a_script_s_file_may_name_the_global_batch_alone(tmp_path: Path) -> None:
    found = fewer_nodes.to_fit(run_of(deepspeed={"train_batch_size": 32}), RunPaths(tmp_path), 2)
    assert found is not None
    assert found.spec["deepspeed"] == {**BATCH, "train_micro_batch_size_per_gpu": 4}


def test_no_node_is_none(tmp_path: Path) -> None:
    assert fewer_nodes.to_fit(run_of(), RunPaths(tmp_path), 0) is None


def test_a_function_that_has_saved_nothing_keeps_its_size(tmp_path: Path) -> None:
    """What another size could not go on from would be saved by the smaller one."""
    run = dataclasses.replace(run_of(), entry=Entry("function", module="train", function="train"))
    assert fewer_nodes.to_fit(run, RunPaths(tmp_path), 2) is None


@pytest.mark.parametrize(
    "said",
    [{}, {"fixed_size": "the model is a pipeline"}, {"own_states": ["loader"]}],
    ids=["divisible", "model", "loader"],
)
def test_a_checkpoint_that_cannot_be_divided_keeps_the_size(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    paths = RunPaths(tmp_path)
    directory = paths.checkpoint(3, 1)
    directory.mkdir(parents=True)
    Manifest(3, 1, 0.0, 8, 1, 32, {"model.pt": File(1, "")}, **said).write(directory)
    assert (fewer_nodes.to_fit(run_of(), paths, 2) is None) is bool(said)
