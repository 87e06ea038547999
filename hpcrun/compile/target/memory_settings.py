"""Settings of memory and communication that DeepSpeed 0.19.8 refuses or ignores together.

Read in its source: it asserts some of them once the job runs, and passes over others in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrun.compile.source.marked_tree import get_at
from hpcrun.compile.source.problems import Reporter
from hpcrun.compile.target import precision_keys
from hpcrun.policy.batch import AUTO

_NAMES = {
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp16": ("fp16", "float16", "half", "torch.float16"),
}
_DTYPE = {word: name for name, words in _NAMES.items() for word in words}
_COMMUNICATED = ("fp16", "bf16", "fp32")
_QUANTISED = (
    *("zero_quantized_weights", "zero_quantized_nontrainable_weights"),
    "zero_quantized_gradients",
)


def check(
    config: dict[str, Any],
    ranks: int | None,
    gpus: int,
    report: Reporter,
    note: Callable[[str], object],
) -> None:
    """Report combinations that would fail or do nothing.

    Parameters
    ----------
    config
        The DeepSpeed configuration; what is ``auto`` in it is not judged.
    ranks
        Ranks that see different samples; None if unknown.
    gpus
        GPUs of a node.
    report
        For keys below ``deepspeed``.
    note
        Takes what the user should know about a configuration that is accepted.
    """
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    if stage not in (0, 1, 2, 3):
        return
    _check_types(config, stage, report)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        _check_offload(zero, stage, report)
        _check_zero_plus_plus(config, zero, stage, ranks, gpus, report)
    autocast = precision_keys.enabled(config).get("torch_autocast.enabled")
    if autocast == precision_keys.FP16 and stage:
        note(
            f"deepspeed.torch_autocast in float16 with ZeRO stage {stage}: DeepSpeed skips a step "
            "that overflows and never lowers the loss scale; without ZeRO it does"
        )
    if config.get("activation_checkpointing"):
        note(
            "deepspeed.activation_checkpointing is read by deepspeed.checkpointing.configure() "
            "alone, which the program has to call; it recomputes nothing by itself"
        )


def _check_types(config: dict[str, Any], stage: int, report: Reporter) -> None:
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        found = config.get(key)
        if found not in (None, AUTO) and str(found).lower() not in _COMMUNICATED:
            report.at(key, f"found {found!r}; accepted are {', '.join(_COMMUNICATED)}")
    modes = precision_keys.enabled(config)
    mode = next((modes[key] for key in modes if not key.startswith("torch_")), "fp32")
    types = config.get("data_types")
    types = types if isinstance(types, dict) else {}
    for key in ("grad_accum_dtype", "param_dtype"):
        given = types.get(key)
        if given in (None, AUTO):
            continue
        name, at = _DTYPE.get(str(given)), ("data_types", key)
        if name is None:
            report.at(at, f"found {given!r}; accepted are {', '.join(_NAMES)}")
        elif key == "param_dtype" and name != mode:
            found = f"found {given}, and the parameters are {mode} by bf16.enabled and fp16.enabled"
            report.at(at, found, f"enable {name} there, or leave this out")
        elif key == "grad_accum_dtype" and name != mode and stage == 0:
            found = f"found {given} beside {mode} parameters, which needs ZeRO"
            report.at(at, found, "set zero_optimization.stage to 1, 2 or 3, or leave this out")
    for block in ("bf16", "fp16"):
        masters = f"{block}_master_weights_and_grads"
        for name in (masters, "bf16_optimizer_states"):
            if get_at(config, (block, name)) is True and stage == 0:
                report.at((block, name), "works with ZeRO stages 1, 2 and 3 alone, found stage 0")
        states = get_at(config, (block, "bf16_optimizer_states")) is True
        if states and get_at(config, (block, masters)) is not True:
            report.at((block, "bf16_optimizer_states"), f"needs {block}.{masters}: true beside it")


def _check_offload(zero: dict[str, Any], stage: int, report: Reporter) -> None:
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        block, at = zero.get(key), ("zero_optimization", key)
        if not isinstance(block, dict) or block.get("device") in (None, "none", AUTO):
            continue
        needed = 3 if block["device"] == "nvme" else least
        if stage < needed:
            stages = "stage 3" if needed == 3 else "stage 1, 2 or 3"
            found = f"found device {block['device']} with ZeRO stage {stage}; it needs {stages}"
            report.at((*at, "device"), found)
        elif block["device"] == "nvme" and not block.get("nvme_path"):
            report.at((*at, "device"), "found nvme without nvme_path beside it")
        ratio = block.get("ratio")
        if isinstance(ratio, (int, float)) and ratio < 1 and stage != 3:
            report.at((*at, "ratio"), f"found {ratio} with ZeRO stage {stage}; it needs stage 3")


def _check_zero_plus_plus(
    config: dict[str, Any],
    zero: dict[str, Any],
    stage: int,
    ranks: int | None,
    gpus: int,
    report: Reporter,
) -> None:
    for name in _QUANTISED:
        if zero.get(name) is not True:
            continue
        at = ("zero_optimization", name)
        if stage != 3:
            report.at(at, f"found true with ZeRO stage {stage}, where it does nothing; it needs 3")
        elif gpus == 0:
            report.at(at, "quantises by kernels of GPUs, and gpus_per_node is 0")
        elif name == "zero_quantized_weights" and get_at(config, ("torch_autocast", "enabled")):
            report.at(at, "DeepSpeed refuses it beside torch_autocast")
    part = zero.get("zero_hpz_partition_size")
    if isinstance(part, int) and part > 1:
        at = ("zero_optimization", "zero_hpz_partition_size")
        if stage != 3:
            report.at(at, f"found {part} with ZeRO stage {stage}, where it does nothing")
        elif ranks is not None and ranks % part:
            report.at(at, f"found {part}, which does not divide the {ranks} ranks")
