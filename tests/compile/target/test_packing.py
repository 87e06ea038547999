"""Runs that share a job: what their job asks for, how runs are divided, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.target import packing
from hpcrun.errors import SpecError
from hpcrun.state.plan import Plan
from hpcrun.state.spec.run_blocks import Pack
from hpcrun.submission import most_hours

BASE = (
    "cluster: slurm\nentry: train.py\nconfig: {x: 0}\n"
    "resources: {ntasks_per_node: 2, cpus_per_task: 3, mem: 1G, time: '02:00:00', "
    "pack: {runs_per_node: 4, nodes_per_job: 2}}\n"
)


def _plan(project: Any, text: str, *overrides: str) -> Plan:
    return freeze(compile_spec(project.write("spec.yaml", BASE + text), list(overrides)))


def _options(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script, re.MULTILINE))


def test_a_job_asks_for_what_its_runs_need_together(project: Any) -> None:
    plan = _plan(project, "sweep: {grid: {config.x: [1, 2, 3, 4, 5, 6, 7]}, max_parallel: 8}\n")
    (array,) = plan.arrays
    asked = _options(array.script)
    shape = {name: asked[name] for name in ("nodes", "ntasks-per-node", "cpus-per-task", "mem")}
    assert shape == {"nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "6", "mem": "4096M"}
    assert "array" not in asked
    assert array.packed
    assert not array.is_array
    last = array.script.splitlines()[-1]
    assert last.endswith("--runs 0-6 --per-node 4 --at-once 7")
    assert "hpcrun.run.packed_job" in last
    # Seven at once, of six processors each, for two hours.
    assert array.cpu_hours == 7 * 6 * 2


def test_runs_of_several_nodes_have_them_alone(project: Any) -> None:
    text = "sweep: {grid: {config.x: [1, 2, 3, 4, 5, 6, 7]}, max_parallel: 6}\n"
    own = "resources.nodes=2", "resources.pack.runs_per_node=1", "resources.pack.nodes_per_job=8"
    plan = _plan(project, text, *own)
    assert [array.runs for array in plan.arrays] == [(0, 1, 2), (3, 4, 5, 6)]
    first, second = (array.script for array in plan.arrays)
    asked = _options(second)
    shape = {name: asked[name] for name in ("nodes", "ntasks-per-node", "cpus-per-task", "mem")}
    assert shape == {"nodes": "6", "ntasks-per-node": "2", "cpus-per-task": "3", "mem": "1G"}
    assert second.splitlines()[-1].endswith("--runs 3-6 --per-node 1 --at-once 3")
    assert first.splitlines()[-1].endswith("--runs 0-2 --per-node 1 --at-once 3")
    # Three at once, of two nodes with six processors each, for two hours.
    assert [array.cpu_hours for array in plan.arrays] == [3 * 12 * 2] * 2
    assert [run.number for run in most_hours.at_once(plan)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("overrides", "outlives"),
    [
        ((), True),
        (("resources.pack.nodes_per_job=1",), False),
        (("recovery.requeue=false",), False),
    ],
)
def test_a_job_of_several_nodes_outlives_one(
    project: Any, overrides: tuple[str, ...], outlives: bool
) -> None:
    plan = _plan(project, "sweep: {grid: {config.x: [1, 2, 3, 4, 5, 6, 7]}}\n", *overrides)
    assert ("#SBATCH --no-kill\n" in plan.arrays[0].script) is outlives


def test_gpus_are_asked_for_together(project: Any) -> None:
    text = "sweep: {grid: {config.x: [1, 2, 3]}}\n"
    plan = _plan(project, text, "resources.ntasks_per_node=null", "resources.gpus_per_node=2")
    assert _options(plan.arrays[0].script)["gpus-per-node"] == "6"


def test_the_hours_above_which_submit_asks_are_those_of_the_job(project: Any) -> None:
    plan = _plan(project, "sweep: {grid: {config.x: [1, 2, 3, 4, 5, 6, 7]}, max_parallel: 2}\n")
    assert [run.number for run in most_hours.at_once(plan)] == [0, 1]


@pytest.mark.parametrize(
    ("runs", "parallel", "sizes"),
    [
        (8, None, [8]),
        (20, None, [6, 7, 7]),
        (20, 8, [20]),
        (20, 9, [10, 10]),
        (3, 1, [3]),
        (1, None, [1]),
    ],
)
def test_as_few_jobs_as_let_them_run_at_once(
    project: Any, runs: int, parallel: int | None, sizes: list[int]
) -> None:
    values = ", ".join(map(str, range(runs)))
    most = "null" if parallel is None else parallel
    text = f"sweep: {{grid: {{config.x: [{values}]}}, max_parallel: {most}}}\n"
    plan = _plan(project, text)
    assert [len(array.runs) for array in plan.arrays] == sizes
    assert sorted(run for array in plan.arrays for run in array.runs) == [*range(runs)]


@pytest.mark.parametrize(
    ("runs", "parallel", "found"),
    [(100, None, (2, 4, 8)), (5, None, (2, 3, 5)), (3, None, (1, 3, 3)), (100, 5, (2, 3, 5))],
)
def test_a_job_has_no_place_for_nobody(
    runs: int, parallel: int | None, found: tuple[int, int, int]
) -> None:
    shape = packing.shape(Pack(4, 2), 1, runs, parallel)
    assert (shape.nodes, shape.per_node, shape.seats) == found


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("resources.nodes=2", "found 4, and runs of 2 nodes have theirs alone"),
        (
            "resources.nodes=2 resources.pack.runs_per_node=1 resources.pack.nodes_per_job=5",
            "found 5, which is no multiple of resources.nodes: 2",
        ),
        (
            "resources.nodes=3 resources.pack.runs_per_node=1 resources.pack.nodes_per_job=5",
            "take 3 or 6",
        ),
        ("resources.nodes=3 resources.pack.runs_per_node=1", "take 3"),
        (
            "resources.nodes=2 resources.pack.runs_per_node=1 resources.pack.nodes_per_job=1026",
            "513 runs of a job at once",
        ),
        ("resources.spare_nodes=1", "resources.spare_nodes: 1"),
        ("resources.mpi=pmix", "resources.mpi: pmix"),
        ("+environment.venv=frozen", "environment.venv: frozen"),
        ("+environment.container={image: a.sif, runtime: apptainer}", "environment.container"),
        ("+recovery.grow={mem: 2}", "recovery.grow"),
        ("+resources.sbatch={mem-per-cpu: 1G}", "sbatch's --mem-per-cpu"),
        ("+resources.sbatch={tres-per-task: 'gres/gpu:1'}", "sbatch's --tres-per-task"),
        ("+framework=mpi", "framework: mpi"),
        ("resources.pack=8", "write pack: {runs_per_node: 8}"),
        ("resources.pack.runs_per_node=0", "runs_per_node: found 0"),
        ("resources.pack.runs_per_node=300", "600 runs of a job at once; accepted are 512"),
    ],
)
def test_what_no_test_has_run_is_refused(project: Any, override: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        _plan(project, "", *re.split(r" (?=resources)", override.removeprefix("+")))
    assert "resources.pack" in str(caught.value)
    assert told in str(caught.value)


def test_options_of_the_cluster_count_too(project: Any) -> None:
    project.write("configs/clusters/mine.yaml", "executor: slurm\nsbatch: {mem-per-cpu: 1G}\n")
    with pytest.raises(SpecError, match="sbatch's --mem-per-cpu"):
        _plan(project, "", "cluster=mine")
    assert _plan(project, "", "cluster=mine", "+resources.sbatch={mem-per-cpu: null}").arrays


def test_memory_that_is_shared_is_told(project: Any) -> None:
    compiled = compile_spec(project.write("spec.yaml", BASE), ["resources.mem=null"])
    assert any("share its job's memory" in note for note in compiled.notes)


@pytest.mark.parametrize(("per_job", "nodes", "is_told"), [(1, 1, 1), (2, 1, 0), (2, 2, 1)])
def test_a_job_of_one_run_is_told(project: Any, per_job: int, nodes: int, is_told: int) -> None:
    own = ["resources.pack.runs_per_node=1", f"resources.pack.nodes_per_job={per_job}"]
    compiled = compile_spec(project.write("spec.yaml", BASE), [*own, f"resources.nodes={nodes}"])
    told = [note for note in compiled.notes if "a job has one run, as it would without" in note]
    assert len(told) == is_told


def test_on_this_machine_it_means_nothing_and_is_told(project: Any) -> None:
    compiled = compile_spec(project.write("spec.yaml", BASE), ["cluster=local"])
    assert any("resources.pack is about Slurm's jobs" in note for note in compiled.notes)
    assert freeze(compiled).arrays[0].packed is False
