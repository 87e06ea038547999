"""Grids: order, labels, identities, and that the fast way is the slow way."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.sweep.resolver import Resolver

BASE = """\
cluster: slurm
entry: train:main
config:
  {lr: 1.0e-3, optimizer: {lr: 2.0}, model: {layers: 2, heads: 1}, twice: '${config.model.layers}'}
deepspeed_config: ds.json
deepspeed: {train_batch_size: 8}
environment: {python: /opt/bin/python}
"""


def compiled(
    project: Any, text: str = "", *sweeps: str, overrides: tuple[str, ...] = ()
) -> Compiled:
    return compile_spec(project.write("demo.yaml", BASE + text), overrides, sweeps)


def test_the_product_in_the_order_written(project: Any) -> None:
    found = compiled(
        project,
        "sweep:\n  grid:\n    config.lr: [1.0e-5, 2.0e-5]\n"
        "    deepspeed.zero_optimization.stage: [1, 2]\n",
    )
    assert [run.label for run in found.runs] == [
        "lr=1e-05,stage=1",
        "lr=1e-05,stage=2",
        "lr=2e-05,stage=1",
        "lr=2e-05,stage=2",
    ]
    last = found.runs[-1]
    assert last.swept == {"config.lr": 2e-5, "deepspeed.zero_optimization.stage": 2}
    assert last.spec["config"]["lr"] == 2e-5
    assert last.spec["deepspeed"]["zero_optimization"]["stage"] == 2
    assert "sweep" not in last.spec


def test_labels_use_the_shortest_suffix_that_tells_keys_apart(project: Any) -> None:
    found = compiled(project, "", "config.lr=1", "config.optimizer.lr=2", "resources.nodes=1")
    assert found.runs[0].label == "config.lr=1,optimizer.lr=2,nodes=1"


def test_choices_have_labels_and_may_be_sub_trees(project: Any) -> None:
    grid = "sweep: {grid: {config.model: {choices: {s: {layers: 1}, l: {layers: 9, heads: 4}}}}}\n"
    small, large = compiled(project, grid).runs
    assert (small.label, large.label) == ("model=s", "model=l")
    assert small.spec["config"]["model"] == {"layers": 1, "heads": 1}
    assert large.spec["config"]["model"] == {"layers": 9, "heads": 4}
    assert large.spec["config"]["twice"] == 9
    assert large.swept == {"config.model": "l"}


def test_the_command_line_replaces_a_key_of_the_grid(project: Any) -> None:
    grid = "sweep: {grid: {config.lr: [1.0, 2.0], resources.nodes: [1, 2]}, max_parallel: 2}\n"
    found = compiled(project, grid, "config.lr=5,6,7")
    assert [run.swept["config.lr"] for run in found.runs] == [5, 5, 6, 6, 7, 7]
    assert found.max_parallel == 2


def test_presets_times_and_strings_can_be_swept(project: Any) -> None:
    found = compiled(project, "", "deepspeed_config=zero0,zero3", "resources.time=1:00:00,2:00:00")
    assert [run.spec["deepspeed"]["zero_optimization"]["stage"] for run in found.runs] == [
        0,
        0,
        3,
        3,
    ]
    assert found.runs[1].spec["resources"]["time"] == "2:00:00"


def test_an_interpolated_value_is_shown_as_what_it_is(project: Any) -> None:
    grid = "sweep: {grid: {config.lr: [1.0, '${config.optimizer.lr}']}}\n"
    assert [run.swept["config.lr"] for run in compiled(project, grid).runs] == [1.0, 2.0]


FLAT = ("config.optimizer=1", "config.twice=x${config.model}")
NESTED = "config.model={choices: {s: {layers: 1}, l: {layers: 9}}}"


@pytest.mark.parametrize(
    ("overrides", "sweep"),
    [
        (("entry=train.py", *FLAT), "config.model=4,5"),
        (("entry=train.py:main",), NESTED),
        (("entry=[echo, 'x${config.lr}']", "flags=key=value"), NESTED),
    ],
)
def test_the_fast_way_is_the_slow_way(
    project: Any, monkeypatch: Any, overrides: tuple[str, ...], sweep: str
) -> None:
    """Points that share a structure and a frame are as those that OmegaConf answers for."""
    sweeps = (
        *("config.lr=1,2.5", "resources.nodes=1,2", "resources.time=1:00:00,2:00:00"),
        *("deepspeed.zero_optimization.stage=1,3", sweep),
    )
    more = ("+config.t=${resources.time}", "+config.z=s${deepspeed.zero_optimization.stage}")
    fast = compiled(project, "", *sweeps, overrides=(*overrides, *more))
    assert len(fast.runs) == 32
    monkeypatch.setattr(Resolver, "__call__", Resolver.slowly)
    assert compiled(project, "", *sweeps, overrides=(*overrides, *more)) == fast


def test_identity_is_what_a_run_computes(project: Any) -> None:
    def identity(text: str = "", *overrides: str) -> str:
        return compiled(project, text, overrides=overrides).runs[0].identity

    same = identity()
    for override in (
        "name=other",
        "cluster=local",
        "resources.partition=gpu",
        "resources.time=9:00:00",
        "checkpoint.every=7",
        "environment.python=/other/python",
        "recovery.resume_args=[--resume]",
        "objective={metric: x, mode: max}",
    ):
        assert identity("", override) == same, override
    for override in (
        "config.lr=2",
        "entry=train.py:main",
        "deepspeed.train_batch_size=16",
        "deepspeed.zero_optimization.stage=3",
        "+config.new=null",
    ):
        assert (identity("", override) == same) == (override == "entry=train.py:main"), override
    swept = compiled(project, "", "resources.nodes=1,2").runs
    assert len({same, *(run.identity for run in swept)}) == 3


def test_runs_keep_their_numbers_and_new_ones_follow(project: Any) -> None:
    first = freeze(compiled(project, "", "config.lr=1,2"))
    assert [run.number for run in first.runs] == [0, 1]
    known = {run.identity: run.number + 4 for run in first.runs}
    second = freeze(compiled(project, "", "config.lr=3,2,1,4"), submission=2, numbers=known)
    assert [run.number for run in second.runs] == [6, 5, 4, 7]
    assert second.arrays[0].runs == (4, 5, 6, 7)
    assert "--array=4-7" in second.arrays[0].script
    assert "/demo/submissions/2" in second.arrays[0].script


def test_only_chosen_runs_go_into_arrays(project: Any) -> None:
    found = compiled(project, "sweep: {max_parallel: 2}\n", "config.lr=1,2,3,4,5,6")
    plan = freeze(found, select=(0, 1, 2, 5))
    assert len(plan.runs) == 6
    assert "--array=0-2,5%2" in plan.arrays[0].script
    alone = freeze(found, select={2})
    assert alone.arrays[0].runs == (2,)
    assert "--array" not in alone.arrays[0].script
    assert "--run 2" in alone.arrays[0].script
    assert freeze(found, select=()).arrays == ()


def test_one_array_for_each_shape(project: Any) -> None:
    found = compiled(project, "", "resources.nodes=1,2", "config.lr=1,2")
    plan = freeze(found)
    assert [array.runs for array in plan.arrays] == [(0, 1), (2, 3)]
    assert "--nodes=2" in plan.arrays[1].script


def test_gpu_hours_are_the_most_that_can_be_used(project: Any) -> None:
    shape = ("resources.gpus_per_node=4", "resources.nodes=2", "resources.time=01:30:00")
    plan = freeze(compiled(project, "", "config.lr=1,2,3", overrides=shape))
    assert plan.arrays[0].gpu_hours == 36.0


def test_local_plans_have_no_scripts(project: Any) -> None:
    plan = freeze(compiled(project, "", "config.lr=1,2", overrides=("cluster=local",)))
    assert plan.arrays[0].script == ""
    assert plan.arrays[0].runs == (0, 1)


def test_arrays_end_where_slurm_s_do(project: Any) -> None:
    """MaxArraySize, 1001 by default, limits the index: 1000 is the last."""
    found = compiled(project, "", "config.lr={range: [1203]}")
    one, two = freeze(found).arrays
    assert (one.runs, one.offset) == (tuple(range(1001)), 0)
    assert "--array=0-1000\n" in one.script
    assert '--run "$SLURM_ARRAY_TASK_ID"' in one.script
    assert (two.runs, two.offset) == (tuple(range(1001, 1203)), 1001)
    assert "--array=0-201\n" in two.script
    assert '--run "$((SLURM_ARRAY_TASK_ID + 1001))"' in two.script

    some = freeze(found, select=[5, 999, 1000, 1001, 1100, 1202]).arrays
    assert [(array.runs, array.offset) for array in some] == [
        ((5, 999, 1000), 0),
        ((1001, 1100, 1202), 1001),
    ]
    (alone,) = freeze(found, select=[1202]).arrays
    assert (alone.runs, alone.offset) == ((1202,), 0)
    assert "--run 1202" in alone.script
    far = {run.identity: 5000 + 900 * number for number, run in enumerate(found.runs)}
    assert [
        array.runs for array in freeze(found, numbers=far, select=[5000, 5900, 6800]).arrays
    ] == [
        (5000, 5900),
        (6800,),
    ]
