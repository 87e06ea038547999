"""The DeepSpeed configuration: merging, checks, and that our lists are those of DeepSpeed."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun import resources
from hpcrun.compile import compile_spec
from hpcrun.compile.target.deepspeed_keys import BLOCKS, REMOVED, TOP_LEVEL, VERSION, is_key
from hpcrun.errors import SpecError

BASE = "cluster: local\nentry: train.py\nresources: {nodes: 2, ntasks_per_node: 2}\n"


def config(project: Any, text: str, *overrides: str) -> dict[str, Any]:
    spec = project.write("spec.yaml", BASE + text)
    found: dict[str, Any] = compile_spec(spec, overrides).runs[0].spec["deepspeed"]
    return found


def test_the_block_wins_over_the_file_and_null_takes_away(project: Any) -> None:
    text = (
        "deepspeed_config: ds.json\ndeepspeed:\n  train_batch_size: 16\n  gradient_clipping: null\n"
        "  zero_optimization: {overlap_comm: true}\n"
    )
    found = config(project, text)
    assert list(found.items()) == [
        ("train_batch_size", 16),
        ("train_micro_batch_size_per_gpu", 4),
        ("gradient_accumulation_steps", 1),
        ("zero_optimization", {"stage": 2, "overlap_comm": True}),
    ]


def test_presets_ship_and_are_right(project: Any) -> None:
    assert list(resources.configs("deepspeed")) == ["zero0", "zero1", "zero2", "zero3"]
    for stage, name in enumerate(resources.configs("deepspeed")):
        found = config(project, f"deepspeed_config: {name}\ndeepspeed: {{train_batch_size: 8}}\n")
        assert found["zero_optimization"]["stage"] == stage


def test_a_script_without_deepspeed_has_an_empty_configuration(project: Any) -> None:
    assert config(project, "") == {}


def test_hugging_face_s_autos_pass_for_scripts(project: Any) -> None:
    text = "deepspeed: {train_batch_size: auto, train_micro_batch_size_per_gpu: auto, \
gradient_accumulation_steps: auto, bf16: {enabled: auto}}\n"
    assert config(project, text)["train_batch_size"] == "auto"
    assert config(project, text)["bf16"] == {"enabled": "auto"}
    solved = config(project, text, "deepspeed.train_micro_batch_size_per_gpu=2")
    assert solved["train_batch_size"] == 8


@pytest.mark.parametrize(
    ("text", "train"),
    [
        ("model_parallel_size: 2\ndeepspeed: {train_micro_batch_size_per_gpu: 1}", 2),
        ("deepspeed: {train_micro_batch_size_per_gpu: 1, sequence_parallel_size: 4}", 1),
        (
            "deepspeed: {train_micro_batch_size_per_gpu: 1, tensor_parallel: {autotp_size: 2}}",
            2,
        ),
    ],
)
def test_model_parallel_ranks_share_their_samples(project: Any, text: str, train: int) -> None:
    assert config(project, text + "\n")["train_batch_size"] == train


def test_model_parallel_ranks_divide_the_ranks(project: Any) -> None:
    with pytest.raises(SpecError, match="3 ranks that hold one copy of the model do not divide"):
        config(project, "model_parallel_size: 3\ndeepspeed: {train_micro_batch_size_per_gpu: 1}\n")


def test_keys_below_blocks_without_a_list_are_deepspeed_s_business() -> None:
    assert is_key(("optimizer", "params", "lr"))
    assert is_key(("zero_optimization", "offload_optimizer", "device"))
    assert not is_key(("zero_optimization", "offload_optimizer", "devise"))
    assert not is_key(("zero_optimisation",))


# What follows reads the installed DeepSpeed, whose keys the module above copies.


@pytest.fixture(scope="module")
def deepspeed() -> Any:
    module = importlib.import_module("deepspeed")
    assert module.__version__.split("+")[0] == VERSION
    return module


@pytest.mark.parametrize(
    ("block", "module", "model"),
    [
        ("bf16", "runtime.precision_config", "DeepSpeedBF16Config"),
        ("fp16", "runtime.precision_config", "DeepSpeedFP16Config"),
        ("zero_optimization", "runtime.zero.config", "DeepSpeedZeroConfig"),
        (
            "zero_optimization.offload_param",
            "runtime.zero.offload_config",
            "DeepSpeedZeroOffloadParamConfig",
        ),
        (
            "zero_optimization.offload_optimizer",
            "runtime.zero.offload_config",
            "DeepSpeedZeroOffloadOptimizerConfig",
        ),
        ("zero_optimization.zenflow", "runtime.zenflow.zenflow_config", "ZenFlowConfig"),
        ("compile", "compile.config", "CompileConfig"),
        ("hybrid_engine", "runtime.config", "HybridEngineConfig"),
        ("comms_logger", "comm.config", "CommsLoggerConfig"),
        ("tensorboard", "monitor.config", "TensorBoardConfig"),
        ("wandb", "monitor.config", "WandbConfig"),
        ("csv_monitor", "monitor.config", "CSVConfig"),
        ("comet", "monitor.config", "CometConfig"),
        ("tensor_parallel", "runtime.tensor_parallel.config", "TPTrainingConfig"),
        ("weight_quantization", "inference.config", "WeightQuantConfig"),
    ],
)
def test_strict_blocks_are_deepspeed_s(deepspeed: Any, block: str, module: str, model: str) -> None:
    fields = getattr(importlib.import_module(f"deepspeed.{module}"), model).model_fields
    names = {*fields, *(field.alias for field in fields.values() if field.alias)}
    assert BLOCKS[block] == names


def test_constants_of_the_blocks_read_by_hand(deepspeed: Any) -> None:
    for block, module, prefix in [
        ("flops_profiler", "profiling.constants", "FLOPS_PROFILER_"),
        ("activation_checkpointing", "runtime.activation_checkpointing.config", "ACT_CHKPT_"),
        ("aio", "runtime.swap_tensor.constants", "AIO_"),
    ]:
        constants = vars(importlib.import_module(f"deepspeed.{module}"))
        names = {
            value
            for name, value in constants.items()
            if name.startswith(prefix) and not name.endswith(("_DEFAULT", "_FORMAT", "_DICT"))
        }
        assert {name for name in names if isinstance(name, str)} == BLOCKS[block]


def test_every_top_level_key_that_deepspeed_reads_is_known(deepspeed: Any) -> None:
    module = importlib.import_module("deepspeed.runtime.config")
    source = inspect.getsource(module)
    constants = set(re.findall(r"param_dict,\s*([A-Z_0-9]+)", source))
    constants |= set(re.findall(r"param_dict(?:\.get\(|\[)([A-Z_0-9]+)", source))
    constants |= set(re.findall(r"([A-Z_0-9]+) in param_dict", source))
    read = {getattr(module, name) for name in constants}
    read |= set(re.findall(r"""param_dict(?:\.get\(|\[)['"](\w+)['"]""", source))
    inner = {name for names in BLOCKS.values() for name in names} | {"max_grad_norm"}
    assert read - inner <= TOP_LEVEL | REMOVED.keys()


def test_every_removed_key_is_known(deepspeed: Any) -> None:
    module = importlib.import_module("deepspeed.runtime.config")
    top = module._REMOVED_TOP_LEVEL_CONFIG_KEYS
    zero = module._REMOVED_ZERO_CONFIG_KEYS
    assert REMOVED.keys() == {*top, *(f"zero_optimization.{name}" for name in zero)}


def test_every_known_key_occurs_in_deepspeed(deepspeed: Any) -> None:
    package = Path(deepspeed.__file__).parent
    text = "".join(path.read_text() for path in package.rglob("*.py") if "ops" not in path.parts)
    words = set(re.findall(r"\w+", text))
    assert words >= TOP_LEVEL
    for names in BLOCKS.values():
        assert words >= names
