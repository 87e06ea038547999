"""What a sweep can say: zipped lists, points, ranges, draws, unions, rules, repeats."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.state import plan_file
from tests.compile.sweep.test_expansion import BASE


def compiled(project: Any, sweep: str, *sweeps: str, overrides: tuple[str, ...] = ()) -> Compiled:
    text = BASE + "sweep:\n" + "".join(f"  {line}\n" for line in sweep.strip().splitlines())
    return compile_spec(project.write("demo.yaml", text), overrides, sweeps)


def labels(project: Any, sweep: str, *sweeps: str) -> list[str]:
    return [run.label for run in compiled(project, sweep, *sweeps).runs]


def values(project: Any, sweep: str, key: str) -> list[Any]:
    return [run.swept[key] for run in compiled(project, sweep).runs]


STUDY = """\
extends: base.yaml
sweep:
  grid:
    config.lr: [1.0e-5, 2.0e-5, 5.0e-5]
    deepspeed.zero_optimization.stage: [1, 2, 3]
    config.model_name:
      choices: {1b: meta-llama/Llama-3.2-1B, 8b: meta-llama/Llama-3.1-8B}
  exclude:
    - {config.model_name: 8b, deepspeed.zero_optimization.stage: 1}
  when:
    - match: {deepspeed.zero_optimization.stage: 3}
      grid: {deepspeed.zero_optimization.offload_optimizer.device: [none, cpu]}
    - match: {config.model_name: 8b}
      set: {resources.nodes: 4}
  repeat: {config.seed: [0, 1, 2]}
  max_parallel: 8
"""


def test_the_study_of_63_runs_in_two_arrays(project: Any) -> None:
    project.write(
        "base.yaml",
        "entry: train.py\ncluster: slurm\nconfig: {model_name: x, lr: 1.0, seed: 0}\n"
        "deepspeed_config: ds.json\ndeepspeed: {train_batch_size: 64}\n"
        "resources: {nodes: 2, gpus_per_node: 4}\nenvironment: {python: /opt/bin/python}\n",
    )
    plan = freeze(compile_spec(project.write("study.yaml", STUDY)))
    assert len({run.identity for run in plan.runs}) == len(plan.runs) == 63
    assert [len(array.runs) for array in plan.arrays] == [36, 27]
    assert ["%5\n" in plan.arrays[0].script, "%3\n" in plan.arrays[1].script] == [True, True]
    assert plan.repeats == ("config.seed",)
    assert plan.runs[0].label == "lr=1e-05,stage=1,model_name=1b,seed=0"
    assert plan.runs[9].label == "lr=1e-05,stage=3,model_name=1b,device=none,seed=0"
    for run in plan.runs:
        large = run.swept["config.model_name"] == "8b"
        assert run.nodes == (4 if large else 2)
        assert "resources.nodes" not in run.swept
        stage = run.spec["deepspeed"]["zero_optimization"]["stage"]
        assert not (large and stage == 1)
        assert ("deepspeed.zero_optimization.offload_optimizer.device" in run.swept) == (stage == 3)
        name = run.spec["config"]["model_name"]
        assert name == f"meta-llama/Llama-3.{'1-8' if large else '2-1'}B"


def test_zipped_lists_go_together(project: Any) -> None:
    sweep = (
        "zip: {config.lr: [1.0, 2.0], config.model.layers: [4, 8]}\ngrid: {resources.nodes: [1, 2]}"
    )
    assert labels(project, sweep) == [
        "nodes=1,lr=1.0,layers=4",
        "nodes=1,lr=2.0,layers=8",
        "nodes=2,lr=1.0,layers=4",
        "nodes=2,lr=2.0,layers=8",
    ]


def test_points_may_have_keys_of_their_own(project: Any) -> None:
    found = compiled(
        project, "points:\n  - {config.lr: 1.0}\n  - {config.lr: 2.0, config.model.layers: 9}"
    )
    assert [run.swept for run in found.runs] == [
        {"config.lr": 1.0},
        {"config.lr": 2.0, "config.model.layers": 9},
    ]
    assert found.runs[1].spec["config"]["twice"] == 9


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("{range: [3]}", [0, 1, 2]),
        ("{range: [1, 9, 4]}", [1, 5]),
        ("{linspace: [0, 1, 5]}", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("{linspace: [0.1, 0.5, 3]}", [0.1, 0.3, 0.5]),
        ("{linspace: [2, 8, 4]}", [2, 4, 6, 8]),
        ("{geomspace: [1.0e-5, 1.0e-3, 3]}", [1e-5, 1e-4, 1e-3]),
        ("{geomspace: [1, 8, 4]}", [1, 2, 4, 8]),
        ("{geomspace: [8, 1, 2]}", [8, 1]),
        ("{geomspace: [3, 4, 1]}", [3]),
    ],
)
def test_ranges(project: Any, form: str, expected: list[Any]) -> None:
    found = values(project, f"grid: {{config.lr: {form}}}", "config.lr")
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


def test_a_range_on_the_command_line(project: Any) -> None:
    sweep = "grid: {config.lr: [7.0]}"
    assert labels(project, sweep, "config.lr={geomspace: [1, 100, 3]}") == [
        "lr=1",
        "lr=10",
        "lr=100",
    ]
    models = "config.model={choices: {a: {layers: 5}, b: {layers: 6}}}"
    assert labels(project, sweep, models) == ["lr=7.0,model=a", "lr=7.0,model=b"]
    assert labels(project, "repeat: {config.lr: [1.0, 2.0]}", "config.lr=3,4") == ["lr=3", "lr=4"]


DRAW = """\
random:
  samples: %d
  seed: %d
  method: %s
  keys:
    config.lr: {loguniform: [1.0e-5, 1.0e-1]}
    config.model.layers: {int_uniform: [1, 4]}
    config.optimizer.lr: {normal: [1.0, 0.5]}
    config.model.heads: {int_loguniform: [1, 64]}
    resources.nodes: [1, 2]
"""


@pytest.mark.parametrize("method", ["uniform", "halton"])
def test_draws_come_from_their_distributions(project: Any, method: str) -> None:
    runs = compiled(project, DRAW % (400, 1, method)).runs
    lrs = [run.swept["config.lr"] for run in runs]
    assert all(1e-5 <= lr <= 1e-1 for lr in lrs)
    assert 160 <= sum(lr < 1e-3 for lr in lrs) <= 240
    layers = [run.swept["config.model.layers"] for run in runs]
    assert {number: 70 <= layers.count(number) <= 130 for number in set(layers)} == dict.fromkeys(
        (1, 2, 3, 4), True
    )
    assert 0.9 < statistics.mean(run.swept["config.optimizer.lr"] for run in runs) < 1.1
    heads = [run.swept["config.model.heads"] for run in runs]
    assert min(heads) == 1
    assert 150 <= sum(number <= 8 for number in heads) <= 270
    assert 160 <= sum(run.spec["resources"]["nodes"] == 1 for run in runs) <= 240


def test_the_quasi_random_cover_evenly(project: Any) -> None:
    """Each of 16 equal parts has its share, give or take one."""
    keys = "config.lr: {uniform: [0, 1]}, config.optimizer.lr: {uniform: [0, 1]}"
    runs = compiled(project, f"random: {{samples: 64, method: halton, keys: {{{keys}}}}}").runs
    parts = [int(run.swept["config.lr"] * 16) for run in runs]
    assert {parts.count(part) for part in range(16)} == {4}


@pytest.mark.parametrize("method", ["uniform", "halton"])
def test_more_samples_and_keys_keep_the_values_there_were(project: Any, method: str) -> None:
    few = compiled(project, DRAW % (8, 1, method)).runs
    many = compiled(project, DRAW % (20, 1, method)).runs
    assert [run.identity for run in many[:8]] == [run.identity for run in few]
    more = compiled(project, DRAW % (8, 1, method) + "    config.twice: {uniform: [0, 1]}\n").runs
    assert [run.swept["config.lr"] for run in more] == [run.swept["config.lr"] for run in few]
    other = compiled(project, DRAW % (8, 2, method)).runs
    assert [run.swept["config.lr"] for run in other] != [run.swept["config.lr"] for run in few]


def test_draws_that_come_again_are_one_run(project: Any) -> None:
    sweep = "random: {samples: 50, keys: {config.model.layers: {int_uniform: [1, 3]}}}"
    assert sorted(labels(project, sweep)) == ["layers=1", "layers=2", "layers=3"]


FINITE = "random: {samples: %d, keys: {config.lr: [1, 2, 3], config.model.layers: [4, 5, 6]}}"


def test_a_space_with_fewer_points_than_samples_is_drawn_whole_and_that_is_said(
    project: Any,
) -> None:
    found = compiled(project, FINITE % 20)
    assert len({run.label for run in found.runs}) == len(found.runs) == 9
    (note,) = found.notes
    assert "demo.yaml:" in note
    assert (
        "sweep.random.samples: 20 were asked for, and its keys have 9 points in all: 9 runs" in note
    )
    assert "`samples: 9`" in note
    assert compiled(project, FINITE % 9).notes == ()


def test_a_point_that_was_drawn_before_is_drawn_anew(project: Any) -> None:
    """As long as there are others; those that were drawn once stay what they were."""
    assert len(labels(project, FINITE % 8)) == 8
    for method in ("uniform", "halton"):
        keys = "{config.lr: {int_uniform: [1, 9]}}"
        sweep = f"random: {{samples: %d, method: {method}, keys: {keys}}}"
        few, many = labels(project, sweep % 5), labels(project, sweep % 9)
        assert many[:5] == few
        assert sorted(many) == [f"lr={number}" for number in range(1, 10)]


def test_points_too_rare_to_be_drawn_are_told(project: Any) -> None:
    often = ", ".join(["1"] * 400)
    sweep = f"random: {{samples: 3, keys: {{config.lr: [{often}, 2, 3]}}}}"
    found = compiled(project, sweep)
    assert len(found.runs) < 3
    assert "3 were asked for, and 133 draws found" in found.notes[0]


@pytest.mark.parametrize(
    ("sweep", "runs", "note"),
    [
        (
            "grid: {config.lr: [1, 2]}\n"
            "when: [{match: {config.lr: 1}, set: {config.model.layers: 7}}]\n"
            "exclude: [{config.lr: 2, config.model.layers: 7}]",
            2,
            "sweep.exclude.0: leaves out no run: none has these values together",
        ),
        (
            "grid: {config.lr: [1, 2]}\nexclude: [{config.model.heads: 99}]",
            2,
            "sweep.exclude.0: leaves out no run",
        ),
        (
            "grid: {config.lr: [1, 2]}\n"
            "when: [{match: {config.model.heads: 99}, grid: {config.model.layers: [1, 2]}}]",
            2,
            "sweep.when.0.match: matches no run",
        ),
        (
            "points: [{config.lr: 1}, {config.lr: 2}, {config.lr: 1}]",
            2,
            "sweep: 3 points, 1 of them the same as another: 2 runs",
        ),
        (
            "union: [{grid: {config.lr: [1, 2]}}, {grid: {config.lr: [1, 2, 3]}}]",
            3,
            "sweep: 5 points, 2 of them the same as others: 3 runs",
        ),
    ],
)
def test_what_a_sweep_drops_or_does_not_find_is_said(
    project: Any, sweep: str, runs: int, note: str
) -> None:
    found = compiled(project, sweep)
    assert len(found.runs) == runs
    (said,) = found.notes
    assert note in said
    assert "demo.yaml" in said


def test_a_sweep_that_drops_nothing_says_nothing(project: Any) -> None:
    sweep = (
        "grid: {config.lr: [1, 2, 3]}\nexclude: [{config.lr: 2}]\nrepeat: {config.model.layers: 2}"
    )
    assert compiled(project, sweep).notes == ()


def test_a_union_of_blocks(project: Any) -> None:
    sweep = (
        "union:\n"
        "  - grid: {config.lr: [1.0, 2.0]}\n"
        "  - {grid: {config.model.layers: [2, 4]}, repeat: {config.lr: [2.0]}}\n"
        "  - points: [{config.lr: 2.0}]"
    )
    assert labels(project, sweep) == [
        "lr=1.0",
        "lr=2.0",
        "layers=2,lr=2.0",
        "layers=4,lr=2.0",
    ]


def test_a_rule_within_a_rule(project: Any) -> None:
    sweep = (
        "grid: {config.model.layers: [1, 2]}\n"
        "when:\n"
        "  - match: {config.model.layers: 2}\n"
        "    grid: {config.lr: [1.0, 2.0]}\n"
        "    when: [{match: {config.lr: 2.0}, grid: {config.model.heads: [4, 8]}}]\n"
        "exclude: [{config.model.layers: 2, config.model.heads: 8}]"
    )
    assert labels(project, sweep) == ["layers=1", "layers=2,lr=1.0", "layers=2,lr=2.0,heads=4"]


def test_rules_see_values_that_are_not_swept(project: Any) -> None:
    """Fixed ones, those of a chosen sub-tree or preset, and interpolated ones."""
    sweep = (
        "grid: {deepspeed_config: [zero1, zero3], config.model: {choices: "
        "{s: {layers: 1}, l: {layers: 9}}}}\n"
        "when:\n"
        "  - {match: {deepspeed.zero_optimization.stage: 3}, set: {resources.nodes: 4}}\n"
        "  - {match: {config.model.layers: [9]}, set: {resources.time: '9:00:00'}}\n"
        "  - {match: {config.twice: 1, config.optimizer.lr: 2}, set: {config.lr: 5.0}}"
    )
    found = compiled(project, sweep).runs
    seen = [
        (run.spec["resources"]["nodes"], run.spec["resources"]["time"], run.spec["config"]["lr"])
        for run in found
    ]
    assert seen == [
        (1, "01:00:00", 5.0),
        (1, "9:00:00", 1e-3),
        (4, "01:00:00", 5.0),
        (4, "9:00:00", 1e-3),
    ]


def test_the_later_rule_wins_and_a_part_of_a_choice_can_be_set(project: Any) -> None:
    sweep = (
        "grid: {config.model: {choices: {s: {layers: 1, heads: 1}}}}\n"
        "when:\n"
        "  - {match: {config.model: s}, set: {config.model.heads: 2, config.lr: 1.0}}\n"
        "  - {match: {config.model: s}, set: {config.lr: 2.0}}"
    )
    (run,) = compiled(project, sweep).runs
    assert run.spec["config"]["model"] == {"layers": 1, "heads": 2}
    assert run.spec["config"]["lr"] == 2.0
    assert run.label == "model=s"


def test_a_rule_sets_what_is_inside_a_swept_value(project: Any) -> None:
    """The swept value replaces what was there; the rule's own stays, at every point."""
    sweep = (
        "grid: {config.twice: [1, 2], config.model: {choices: {none: null, some: null}}}\n"
        "when: [{match: {config.model: some}, "
        "set: {config.model.layers: [3], config.model.heads: 1}}]"
    )
    found = [run.spec["config"]["model"] for run in compiled(project, sweep).runs]
    assert found == [None, {"layers": [3], "heads": 1}] * 2


def test_points_that_turn_out_to_be_one_are_one_run(project: Any) -> None:
    sweep = "grid: {config.lr: ['${config.optimizer.lr}', 2.0, 3.0]}"
    assert labels(project, sweep) == ["lr=2.0", "lr=3.0"]


def test_rules_see_the_file_of_deepspeed(project: Any) -> None:
    """ds.json has stage 2; a block of a union may say otherwise."""
    rule = "when: [{match: {deepspeed.zero_optimization.stage: 2}, set: {resources.nodes: 4}}]"
    (run,) = compiled(project, rule).runs
    assert run.spec["resources"]["nodes"] == 4
    sweep = (
        "union: [{grid: {deepspeed.zero_optimization.stage: [1, 2]}}, {grid: {config.lr: [5]}}]\n"
        "exclude: [{deepspeed.zero_optimization.stage: 2}]"
    )
    assert labels(project, sweep) == ["stage=1"]


def test_rules_see_what_is_around_a_swept_key(project: Any) -> None:
    sweep = "grid: {config.model.layers: [1, 2]}\nexclude: [{config.model: {layers: 1, heads: 1}}]"
    assert labels(project, sweep) == ["layers=2"]
    lists = "grid: {config.lr: [[1, 2], [3]]}\nexclude: [{config.lr: [1, 2]}]"
    assert labels(project, lists) == ["lr=[3]"]


def test_draws_are_as_fine_as_what_they_are_drawn_from(project: Any) -> None:
    for form in ("uniform: [1000000, 1000010]", "normal: [1000000, 1]", "uniform: [0, 1.0e-9]"):
        sweep = f"random: {{samples: 20, keys: {{config.lr: {{{form}}}}}}}"
        assert len(labels(project, sweep)) == 20


def test_draws_keep_their_order(project: Any) -> None:
    """Also where a value comes again: it stays where it was first."""
    sweep = "random: {samples: %d, keys: {config.lr: [0, 1, 2, 3]}}"
    few, many = labels(project, sweep % 6), labels(project, sweep % 30)
    assert many[: len(few)] == few


def test_a_number_repeats_so_often(project: Any) -> None:
    assert labels(project, "repeat: {config.lr: 3}") == ["lr=0", "lr=1", "lr=2"]


def test_where_a_run_computes_matters_not_for_what_it_is(project: Any) -> None:
    plain = compiled(project, "grid: {config.lr: [1.0]}").runs[0]
    ruled = compiled(
        project,
        "grid: {config.lr: [1.0]}\nwhen: [{match: {config.lr: 1}, set: {resources.nodes: 4}}]",
    ).runs[0]
    assert ruled.spec["resources"]["nodes"] == 4
    assert ruled.identity == plain.identity


def test_rules_of_the_file_bear_with_the_command_line(project: Any) -> None:
    sweep = "grid: {config.lr: [1.0, 2.0]}\nexclude: [{config.lr: 2.0}]"
    assert labels(project, sweep, "config.lr=3,4") == ["lr=3", "lr=4"]


def test_identities_are_the_same_in_another_process(project: Any) -> None:
    sweep = DRAW % (5, 3, "halton") + "repeat: {config.twice: 2}\n"
    here = [run.identity for run in compiled(project, sweep).runs]
    program = (
        "import sys; from hpcrun.compile import compile_spec\n"
        "print(*[run.identity for run in compile_spec(sys.argv[1]).runs])"
    )
    for seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-c", program, "demo.yaml"],
            env={"PYTHONHASHSEED": seed, "HOME": "/", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.split() == here


def test_identities_stay_what_they_are(project: Any) -> None:
    """On every Python that runs this, and in whatever order keys are written."""
    spec = {
        "entry": "train.py:main",
        "cluster": "slurm",
        "config": {
            "text": "\u00e4 \U0001f40d",
            "small": 1e-05,
            "large": 1e22,
            "third": 1 / 3,
            "none": None,
            "nested": {"on": True, "list": [1, 2.5, {"b": 1, "a": 2}]},
            "lr": 0.1,
        },
        "deepspeed": {
            "train_batch_size": 8,
            "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8},
            "gradient_clipping": 1.0,
        },
        "sweep": {
            "random": {"samples": 3, "keys": {"config.lr": {"loguniform": [1e-5, 1e-2]}}},
            "repeat": {"config.small": [1e-7, 2]},
        },
    }

    def identities(text: str) -> list[str]:
        runs = compile_spec(project.write("demo.yaml", text)).runs
        return [run.identity[:12] for run in runs]

    found = identities(json.dumps(spec, ensure_ascii=False))
    assert found == [
        "42e6c1fd0fe9",
        "f942b4f68046",
        "365d15accd28",
        "f14043b711b5",
        "fb1bc82fc963",
        "299decec7ffc",
    ]
    assert identities(json.dumps(_reversed(spec), ensure_ascii=False)) == found


def _reversed(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _reversed(data[key]) for key in reversed(data)}
    return [_reversed(item) for item in data] if isinstance(data, list) else data


def test_the_values_drawn_stay_what_they_are(project: Any) -> None:
    """Runs keep their identities: the first values of a seed are written down here."""
    drawn = {
        method: [list(run.swept.values()) for run in compiled(project, DRAW % (3, 0, method)).runs]
        for method in ("uniform", "halton")
    }
    assert drawn == {
        "uniform": [
            [0.000261415, 1, 1.061051, 45, 2],
            [0.0551547, 4, 0.927252, 2, 2],
            [0.00757019, 2, 0.82716, 1, 2],
        ],
        "halton": [
            [2.7069e-05, 1, 0.752764, 2, 2],
            [0.027069, 2, 1.277403, 1, 1],
            [0.00027069, 4, 0.388028, 4, 1],
        ],
    }


def test_frozen_plans_say_what_repeats(project: Any, tmp_path: Any) -> None:
    plan = freeze(compiled(project, "repeat: {config.lr: 2}"))
    plan_file.write(plan, tmp_path / "plan.json")
    assert plan_file.read(tmp_path / "plan.json") == plan
