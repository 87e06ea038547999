"""Shapes of DeepSpeed configurations that people publish: scripts get them as they are.

Each is what DeepSpeed accepts or refuses itself; see docs/deepspeed-configs.md.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.target.deepspeed_keys import BLOCKS, LENIENT
from hpcrun.errors import SpecError
from hpcrun.policy import batch


def _auto(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "auto")


SPEC = "cluster: slurm\ndeepspeed_config: ds.json\n"
CLIP = _auto("gradient_clipping")
ALL_AUTO = {**_auto(*batch.KEYS), **CLIP}
ONE_STEP = {**ALL_AUTO, batch.ACCUMULATION: 1}
EITHER = {"bf16": _auto("enabled"), "fp16": {"enabled": "auto", "loss_scale": 0, "hysteresis": 2}}
HALF = {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
ADAMW = {"optimizer": {"type": "AdamW", "params": _auto("lr", "betas", "eps", "weight_decay")}}
WARM_UP = {"type": "WarmupLR", "params": _auto("warmup_min_lr", "warmup_max_lr")}
PLAIN_ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999]}}}
STAGE_2 = {"stage": 2, "allgather_bucket_size": 5e8, "reduce_bucket_size": 5e8}
STAGE_3 = {
    **{"stage": 3, "sub_group_size": 1e9},
    **_auto("reduce_bucket_size", "stage3_prefetch_bucket_size"),
    **_auto("stage3_param_persistence_threshold"),
}
CPU = {"device": "cpu", "pin_memory": True}
LTD = {"enabled": True, "model_mask_name": None, "random_ltd_layer_num": 10}


def _zero(stage: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {**stage, **more}}


ACCEPTED: dict[str, dict[str, Any]] = {
    "accelerate's templates": {
        **{**ONE_STEP, **HALF, **ADAMW, "scheduler": WARM_UP},
        **_zero(STAGE_3, stage3_gather_16bit_weights_on_model_save="auto", offload_param=CPU),
    },
    "accelerate, sequence parallel": {
        **{**_auto(batch.TRAIN, batch.MICRO), batch.ACCUMULATION: 1, "bf16": {"enabled": True}},
        **{**_zero({"stage": 3}), "seq_parallel_communication_data_type": "bf16"},
    },
    "accelerate, a model alone": {batch.MICRO: 1, **EITHER, **_zero(STAGE_3)},
    "axolotl": {
        **{**ALL_AUTO, **EITHER},
        **_zero(STAGE_3, max_live_parameters=0, gather_16bit_weights_on_model_save=True),
    },
    "axolotl, offloaded": {
        **{**ALL_AUTO, "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": True}},
        **_zero(STAGE_3, offload_param=CPU, offload_optimizer=CPU),
    },
    "LLaMA-Factory": {**ALL_AUTO, **EITHER, **_zero(STAGE_2, round_robin_gradients=True)},
    "LLaMA-Factory, a comment": {"_comment": "the models that it knows", **ALL_AUTO, **EITHER},
    "LLaMA-Factory, two keys and two blocks of its own": {
        **{**_auto(batch.MICRO, batch.ACCUMULATION), **CLIP},
        **{"comms_config": {"verbose": False}, "monitor_config": {"tag": "mine"}},
    },
    "transformers' tests": {**ALL_AUTO, **EITHER, **ADAMW, "scheduler": WARM_UP},
    "transformers' tests, bfloat16": {
        **{**ALL_AUTO, "bfloat16": _auto("enabled"), **ADAMW},
        **_zero(STAGE_3, stage3_gather_fp16_weights_on_model_save=True),
    },
    "transformers' tests, no batch": {**HALF, **PLAIN_ADAM, **_zero(STAGE_2)},
    "DeepSpeedExamples, one batch key": {batch.TRAIN: 64, **PLAIN_ADAM, "steps_per_print": 10},
    "DeepSpeedExamples, a key that was": {
        **{batch.TRAIN: 256, batch.ACCUMULATION: 1, **PLAIN_ADAM, **_zero({"stage": 0})},
        **{"cuda_visible_devices": 0, "fp16": {"enabled": False}},
    },
    "DeepSpeedExamples, null is a value": {
        **{batch.TRAIN: 32, batch.MICRO: 32},
        "data_efficiency": {"enabled": False, "data_routing": {"random_ltd": LTD}},
    },
    "DeepSpeedExamples, autotuning": {
        **{**_auto(batch.MICRO), **EITHER},
        "autotuning": {
            **{"enabled": True, "overwrite": False, "fast": True},
            "arg_mappings": {batch.MICRO: "--per_device_train_batch_size"},
        },
    },
    "DeepSpeedExamples, ZenFlow": {
        **{batch.TRAIN: 8, batch.ACCUMULATION: 1, **PLAIN_ADAM},
        **_zero(STAGE_2, offload_optimizer=CPU, zenflow={"topk_ratio": 0.1, "overlap_step": True}),
    },
}
BATCH = {batch.TRAIN: 32, batch.MICRO: 16}
# What DeepSpeed 0.19.8 refuses: the key that is told, and the configuration.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "axolotl, torch.compile": (
        "compile.disable",
        {**ALL_AUTO, "compile": {"disable": False, "backend": "inductor"}},
    ),
    "compression": ("compression_training", {**BATCH, "compression_training": {}}),
    "progressive layers": ("progressive_layer_drop", {**BATCH, "progressive_layer_drop": {}}),
    "sparse attention": ("sparse_attention", {**BATCH, "sparse_attention": {"mode": "fixed"}}),
    "amp": ("amp", {**BATCH, "amp": {"enabled": False}}),
    "elasticity": ("elasticity", {"elasticity": {"enabled": True}}),
    "sparse gradients": ("sparse_gradients", {**BATCH, "sparse_gradients": False}),
    "a curriculum": ("curriculum_learning", {**BATCH, "curriculum_learning": {}}),
    "a contradiction": (batch.TRAIN, {**BATCH, batch.ACCUMULATION: 4}),
    "nothing fits": (batch.TRAIN, {batch.TRAIN: 30, batch.MICRO: 16}),
    "a comment in a strict block": ("fp16._comment", {**BATCH, "fp16": {"_comment": "off"}}),
}
ONE_BIT = {**BATCH, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}


def _compiled(project: Any, config: dict[str, Any], entry: str = "train.py") -> Any:
    project.write("ds.json", json.dumps(config))
    spec = f"{SPEC}entry: {entry}\nresources: {{gpus_per_node: 1}}\n"
    return compile_spec(project.write("spec.yaml", spec))


@pytest.mark.parametrize("entry", ["train.py", "[torchrun, train.py]"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_script_gets_it_unchanged(project: Any, name: str, entry: str) -> None:
    found = _compiled(project, ACCEPTED[name], entry).runs[0].spec["deepspeed"]
    assert found == ACCEPTED[name]
    assert list(found) == list(ACCEPTED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepspeed_refuses_is_refused_before_the_queue(project: Any, name: str) -> None:
    key, config = REFUSED[name]
    with pytest.raises(SpecError) as caught:
        _compiled(project, config)
    assert f"deepspeed.{key}" in [problem.key for problem in caught.value.problems]


def test_an_optimizer_that_is_gone_is_refused(project: Any) -> None:
    with pytest.raises(SpecError, match="has removed the optimizer OneBitAdam"):
        _compiled(project, ONE_BIT)


def test_what_deepspeed_ignores_is_told_with_its_place(project: Any) -> None:
    name = "LLaMA-Factory, two keys and two blocks of its own"
    notes = _compiled(project, ACCEPTED[name]).notes
    told = [note.partition("ds.json:1: ")[2] for note in notes if "ignores" in note]
    assert told == [
        "DeepSpeed 0.19.8 ignores deepspeed.comms_config",
        "DeepSpeed 0.19.8 ignores deepspeed.monitor_config",
    ]
    assert not any("_comment" in note for note in _compiled(project, {"_comment": 1}).notes)


def test_parts_of_a_global_batch_that_the_program_fills_in_make_another_run(project: Any) -> None:
    """Another number of samples a step went on from the checkpoints of the old one."""
    micro, train = "train_micro_batch_size_per_gpu", "train_batch_size"

    def identities(*batches: dict[str, Any]) -> int:
        return len({_compiled(project, one).runs[0].identity for one in batches})

    assert identities({train: "auto", micro: 2}, {train: "auto", micro: 4}) == 2
    assert identities({train: 8, micro: 2}, {train: 8, micro: 4}, {train: 8}) == 1
    assert identities({train: "auto", micro: "auto"}, {train: "auto"}) == 1


def test_a_comment_makes_no_other_run(project: Any) -> None:
    identities = {
        _compiled(project, {**BATCH, "aio": {"use_gds": False}, **more}).runs[0].identity
        for more in (
            *({}, {"_comment": "one"}, {"_comment": "another"}),
            *({"aio": {"use_gds": False, "//": text}} for text in ("one", "another")),
        )
    }
    assert len(identities) == 1


def test_very_many_keys_that_deepspeed_ignores_are_a_mistake(project: Any) -> None:
    with pytest.raises(SpecError) as caught:
        _compiled(project, {f"mine{number:05}": 1 for number in range(2_000)})
    (problem,) = caught.value.problems
    assert problem.message == "is one of more than 50 keys that DeepSpeed does not know"


def test_a_key_that_is_no_text_for_a_terminal_is_shown_safely(project: Any, hpcrun: Any) -> None:
    _compiled(project, {"\x1b[2J" + "long" * 10_000: 1, **ALL_AUTO})
    said = hpcrun("plan", "spec.yaml").err
    assert "DeepSpeed 0.19.8 ignores deepspeed." in said
    assert "\x1b" not in said
    assert len(said) < 3_000


def test_a_batch_that_nobody_gave_is_told(project: Any) -> None:
    notes = _compiled(project, ACCEPTED["transformers' tests, no batch"]).notes
    assert "the DeepSpeed configuration has no batch size: the program has to give one" in notes
    assert not any("batch" in note for note in _compiled(project, ALL_AUTO).notes)


@pytest.mark.parametrize(
    ("config", "key", "hint"),
    [
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation", "zero_optimization"),
        ({"gradient_clip": 1.0}, "gradient_clip", "gradient_clipping"),
        ({"offload_optimizer": CPU}, "offload_optimizer", "zero_optimization.offload_optimizer"),
        ({"autotuning": {"fastt": True}}, "autotuning.fastt", "fast"),
        (
            {"autotuning": {"model_info": {"num_parms": 1}}},
            "autotuning.model_info.num_parms",
            "num_params",
        ),
        ({"pipeline": {"pipe_partitoned": True}}, "pipeline.pipe_partitoned", "pipe_partitioned"),
        ({"optimizer": {"typo": "Adam"}}, "optimizer.typo", "type"),
    ],
)
@pytest.mark.parametrize("entry", ["train.py", "train.py:main"])
def test_a_typo_is_refused(
    project: Any, config: dict[str, Any], key: str, hint: str, entry: str
) -> None:
    with pytest.raises(SpecError) as caught:
        _compiled(project, {**BATCH, **config}, entry)
    (problem,) = caught.value.problems
    assert (problem.key, problem.hint) == (f"deepspeed.{key}", f"did you mean '{hint}'?")


def test_a_function_is_told_what_deepspeed_would_ignore_unless_it_is_a_comment(
    project: Any,
) -> None:
    comments = {"_comment": "a", "//": "b", "comment": "c", "optimizer": {"# lr": "d"}}
    found = _compiled(project, {**BATCH, **comments}, "train.py:main").runs[0].spec["deepspeed"]
    assert comments.items() <= found.items()
    for mine in ({"cuda_visible_devices": 0}, {"autotuning": {"start_step": 5}}):
        with pytest.raises(SpecError, match=r"0\.19\.8 does not know this key"):
            _compiled(project, {**BATCH, **mine}, "train.py:main")


@pytest.mark.parametrize(
    ("file", "own", "solved"),
    [
        (ONE_STEP, "train_batch_size: 64", (64, 16, 1)),
        (ONE_STEP, "train_micro_batch_size_per_gpu: 4", (16, 4, 1)),
        ({batch.MICRO: 4}, "gradient_accumulation_steps: auto", (16, 4, 1)),
        (ONE_STEP, "gradient_accumulation_steps: 2", ("auto", "auto", 2)),
        (ALL_AUTO, "gradient_clipping: 1.0", ("auto", "auto", "auto")),
        ({batch.TRAIN: 32, **_auto(batch.MICRO)}, "bf16: {enabled: true}", (32, "auto", None)),
        ({batch.MICRO: 4}, "bf16: {enabled: true}", (None, 4, None)),
    ],
)
def test_the_specs_own_batch_keys_are_solved(
    project: Any, file: dict[str, Any], own: str, solved: tuple[Any, ...]
) -> None:
    project.write("ds.json", json.dumps(file))
    spec = f"{SPEC}entry: train.py\nresources: {{nodes: 2, ntasks_per_node: 2}}\n"
    compiled = compile_spec(project.write("spec.yaml", f"{spec}deepspeed: {{{own}}}\n"))
    found = compiled.runs[0].spec["deepspeed"]
    assert tuple(found.get(key) for key in batch.KEYS) == solved


def test_a_swept_batch_key_is_the_specs_own(project: Any) -> None:
    project.write("ds.json", json.dumps(ONE_STEP))
    spec = f"{SPEC}entry: train.py\nresources: {{nodes: 2}}\n"
    swept = ["deepspeed.train_batch_size=8,16"]
    runs = compile_spec(project.write("spec.yaml", spec), (), swept).runs
    assert [run.spec["deepspeed"][batch.MICRO] for run in runs] == [4, 8]


def test_shrinking_needs_a_batch_to_keep(project: Any) -> None:
    spec = f"{SPEC}entry: train.py\nrecovery: {{shrink: true}}\nresources: {{nodes: 2}}\n"
    for config, told in ((ALL_AUTO, True), ({batch.TRAIN: 8}, False)):
        project.write("ds.json", json.dumps(config))
        notes = compile_spec(project.write("spec.yaml", spec)).notes
        assert any("recovery.shrink does nothing" in note for note in notes) is told


def test_the_example_of_the_documentation(project: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "deepspeed-configs.md").read_text()
    example = page.partition("**Your own JSON with a Trainer.**")[2]
    text = example.partition("```yaml\n")[2].partition("```")[0]
    project.write("ds_z3_config.json", json.dumps({**ALL_AUTO, **EITHER, **_zero(STAGE_3)}))
    run = compile_spec(project.write("sft.yaml", f"{text}cluster: slurm\n")).runs[0]
    assert run.spec["deepspeed"][batch.TRAIN] == "auto"
    assert run.entry.argv[2:4] == ("--deepspeed", "${hpcrun:deepspeed_config}")


# What follows asks the installed DeepSpeed.


def filled(value: Any, name: str = "") -> Any:
    """What a Trainer makes of ``auto``: its own numbers."""
    if isinstance(value, dict):
        return {key: filled(item, key) for key, item in value.items()}
    if value != "auto":
        return value
    numbers: dict[str, Any] = {"betas": [0.9, 0.999], "enabled": False}
    return numbers.get(name, True if name.endswith("on_model_save") else 1)


@pytest.fixture(scope="module")
def deepspeed() -> Any:
    return importlib.import_module("deepspeed.runtime.config")


@pytest.mark.parametrize("name", ACCEPTED)
def test_deepspeed_accepts_what_is_accepted(deepspeed: Any, name: str) -> None:
    config = filled(ACCEPTED[name])
    deepspeed.DeepSpeedConfig(
        config if config.keys() & {*batch.KEYS[:2]} else {**config, batch.TRAIN: 8}
    )


@pytest.mark.parametrize("name", REFUSED)
def test_deepspeed_refuses_what_is_refused(deepspeed: Any, name: str) -> None:
    # Pydantic's errors are ValueErrors.
    kinds = (AssertionError, ValueError, deepspeed.DeepSpeedConfigError)
    with pytest.raises(kinds, match=r"."):
        deepspeed.DeepSpeedConfig(filled(REFUSED[name][1]))


@pytest.mark.parametrize("block", ["", *BLOCKS])
def test_deepspeed_ignores_what_it_does_not_know_where_we_say(deepspeed: Any, block: str) -> None:
    config: dict[str, Any] = {"no_such_key": 1}
    for part in reversed(block.split(".") if block else ()):
        config = {part: config}
    if not block or block in LENIENT:
        deepspeed.DeepSpeedConfig({**BATCH, **config})
    else:
        with pytest.raises(ValueError, match="no_such_key"):
            deepspeed.DeepSpeedConfig({**BATCH, **config})


def test_autotuning_and_what_is_parsed_by_hand(deepspeed: Any) -> None:
    tuning = importlib.import_module("deepspeed.autotuning.config")
    source = inspect.getsource(tuning.DeepSpeedAutotuningConfig)
    read = set(re.findall(r"param\(\s*autotuning_dict,\s*(\w+)", source))
    assert {getattr(tuning, name) for name in read} | {"model_info"} == BLOCKS["autotuning"]
    assert tuning.MODEL_INFO_KEY_DEFAULT_DICT.keys() == BLOCKS["autotuning.model_info"]
    experts = importlib.import_module("deepspeed.module_inject.auto_ep_config")
    source = inspect.getsource(experts.parse_autoep_config)
    read = set(re.findall(r'param_dict(?:\.get\(|\[)"(\w+)"', source))
    assert read == BLOCKS["expert_parallel"]
    assert deepspeed.get_pipeline_config({}).keys() | {"use_reentrant"} == BLOCKS["pipeline"]
    data = importlib.import_module("deepspeed.runtime.data_pipeline.config")
    assert data.get_data_efficiency_config({}).keys() == BLOCKS["data_efficiency"]


def test_torch_has_no_such_optimizer() -> None:
    assert not hasattr(importlib.import_module("torch").optim, "OneBitAdam")
