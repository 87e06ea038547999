"""Short keys: what they stand for, and that the runs are those of the full keys."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec
from hpcrun.errors import SpecError

BASE = """\
entry: train:main
cluster: slurm
config: {lr: 1.0, seed: 0, kind: a, model: {layers: 2, width: 8}}
deepspeed_config: ds.json
deepspeed: {train_batch_size: 64}
resources: {nodes: 1, ntasks_per_node: 2}
"""
FULL = """\
sweep:
  grid: {config.lr: [1, 2], deepspeed.zero_optimization.stage: [1, 2]}
  zip: {config.model.layers: [1, 2], config.model.width: [3, 4]}
  exclude: [{config.lr: 1, deepspeed.zero_optimization.stage: 2}]
  when: [{match: {config.lr: 2}, grid: {resources.nodes: [1, 2]}, set: {config.kind: b}}]
  repeat: {config.seed: 2}
"""
SHORT = """\
sweep:
  grid: {lr: [1, 2], stage: [1, 2]}
  zip: {model.layers: [1, 2], width: [3, 4]}
  exclude: [{lr: 1, stage: 2}]
  when: [{match: {lr: 2}, grid: {nodes: [1, 2]}, set: {kind: b}}]
  repeat: {seed: 2}
"""
DRAWN = "sweep: {random: {samples: 5, keys: {KEY: {uniform: [0, 1]}}}}\n"


def compiled(project: Any, sweep: str, *overrides: str, sweeps: tuple[str, ...] = ()) -> Compiled:
    return compile_spec(project.write("demo.yaml", BASE + sweep), overrides, sweeps)


def test_a_sweep_of_short_keys_is_that_of_the_full_ones(project: Any) -> None:
    full = compiled(project, FULL)
    assert compiled(project, SHORT) == full
    assert len(full.runs) == 20
    assert full.repeats == ("config.seed",)


def test_a_draw_is_that_of_the_full_key(project: Any) -> None:
    full = compiled(project, DRAWN.replace("KEY", "config.lr"))
    assert compiled(project, DRAWN.replace("KEY", "lr")) == full


def test_points_and_unions_take_them(project: Any) -> None:
    sweep = "sweep: {union: [{points: [{lr: 5, nodes: 2}]}, {grid: {width: [3]}}]}\n"
    found = compiled(project, sweep).runs
    assert [run.swept for run in found] == [
        {"config.lr": 5, "resources.nodes": 2},
        {"config.model.width": 3},
    ]


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("lr=5", "config.lr=5"),
        ("layers=7", "config.model.layers=7"),
        ("model.layers=7", "config.model.layers=7"),
        ("model={layers: 7}", "config.model={layers: 7}"),
        ("stage=3", "deepspeed.zero_optimization.stage=3"),
        ("nodes=2", "resources.nodes=2"),
        ('time="02:00:00"', 'resources.time="02:00:00"'),
        ("max_parallel=2", "sweep.max_parallel=2"),
    ],
)
def test_an_override_is_that_of_the_full_key_and_is_told(
    project: Any, typed: str, full: str
) -> None:
    short = compiled(project, "", typed)
    expected = compiled(project, "", full)
    assert (short.runs, short.max_parallel) == (expected.runs, expected.max_parallel)
    assert expected.notes == ()
    assert short.notes == (f"{typed}: the key is read as {full.partition('=')[0]}",)


def test_the_command_line_replaces_and_repeats_by_short_keys(project: Any) -> None:
    found = compiled(project, SHORT, sweeps=("lr=2,3", "seed=5"))
    assert {run.swept["config.lr"] for run in found.runs} == {2, 3}
    assert {run.swept["config.seed"] for run in found.runs} == {5}
    assert found.repeats == ("config.seed",)
    assert found.notes[:2] == (
        "--sweep lr=2,3: the key is read as config.lr",
        "--sweep seed=5: the key is read as config.seed",
    )


def test_a_key_in_full_means_itself_whatever_ends_in_it(project: Any) -> None:
    found = compiled(project, "", "+config.name=x", "name=other")
    assert (found.name, found.runs[0].spec["config"]["name"]) == ("other", "x")


def test_a_mistake_below_a_short_key_keeps_its_line(project: Any) -> None:
    with pytest.raises(SpecError) as raised:
        compiled(project, "sweep:\n  grid:\n    nodes:\n    - 1\n    - two\n")
    (problem,) = raised.value.problems
    assert (problem.line, problem.key) == (11, "resources.nodes")


def test_nothing_is_added_by_a_short_key(project: Any) -> None:
    with pytest.raises(SpecError, match="there is no key batch"):
        compiled(project, "", "batch=3")
