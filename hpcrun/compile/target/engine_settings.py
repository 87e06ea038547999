"""The precision, memory and communication of DeepSpeed's engine: what goes together, and where.

DeepSpeed 0.19.8 has keys for bf16, fp16 and autocast, and none for TF32 and fp8: these are the
ranks' (`hpcrun.run.rank.device_precision`). Of what does not go together its source asserts some
once the job runs, and passes over the rest in silence.
"""

from __future__ import annotations

from typing import Any

from hpcrun import gpu_catalogue
from hpcrun.compile.source.marked_tree import Reporter, get_at
from hpcrun.compile.target.draft import TRAINERS, SpecDraft
from hpcrun.errors import UsageError
from hpcrun.gpu_catalogue import FP8, FP32, HALF, TF32
from hpcrun.policy.batch import AUTO

FP16 = "fp16"
# precision -> what DeepSpeed's keys may say beside it.
_GOES_WITH = {FP32: (), TF32: (), HALF: (HALF,), FP16: (FP16,), FP8: (HALF,)}


def enabled(config: dict[str, Any]) -> dict[str, str]:
    """Return the keys of a DeepSpeed configuration that lower the precision, and to what."""
    found = {
        f"{block}.enabled": name
        for block, name in (("bf16", HALF), ("bfloat16", HALF), ("fp16", FP16))
        if get_at(config, (block, "enabled")) is True
    }
    if get_at(config, ("torch_autocast", "enabled")) is True:
        dtype = str(get_at(config, ("torch_autocast", "dtype")))
        is_fp16 = dtype in ("fp16", "float16", "torch.float16")
        found["torch_autocast.enabled"] = FP16 if is_fp16 else HALF
    return found


def fill_in(draft: SpecDraft) -> None:
    """Put the keys of ``precision`` into the DeepSpeed configuration; report what conflicts."""
    config, precision, report = draft.config, draft.spec["precision"], draft.report
    if draft.kind is None:
        return
    said, modes = f"found {precision}", enabled(config)
    for key, other in modes.items():
        if other not in _GOES_WITH[precision]:
            report.at("precision", f"{said}, and deepspeed.{key} is {other}", "give one of them")
            return
    if precision in (TF32, FP8) and draft.gpus == 0:
        report.at("precision", f"{said}, and processors have none (gpus_per_node is 0)", "use bf16")
    elif precision in (FP32, TF32):
        return
    elif draft.framework in TRAINERS:
        found = f"{said}, and {draft.framework} takes the precision from the program's own flags"
        report.at("precision", found, "leave it out, and give the program its flag")
    elif not config:
        found = f"{said}, and there is no DeepSpeed configuration that says it to the program"
        report.at("precision", found, "give deepspeed_config or deepspeed, or the program's flag")
    elif not modes:
        draft.spec["deepspeed"] = {**config, **_keys_of(precision, config, draft.gpus)}


def _keys_of(precision: str, config: dict[str, Any], gpus: int) -> dict[str, Any]:
    block = FP16 if precision == FP16 else "bf16"
    if block == FP16 and not gpus:
        # DeepSpeed takes fp16 itself on few processors.
        return {"torch_autocast": {"enabled": True, "dtype": "float16"}}
    return {block: {**(config.get(block) or {}), "enabled": True}}


def check_gpu(draft: SpecDraft) -> None:
    """Report a precision that the type of GPU has no units for; unknown types have all."""
    gpu_type = draft.spec["resources"]["gpu_type"]
    if not draft.gpus:
        return
    try:
        gpu = gpu_catalogue.find(gpu_type)
    except UsageError:
        return
    wanted = {f"deepspeed.{key}": name for key, name in enabled(draft.config).items()}
    wanted["precision"] = draft.spec["precision"]
    for key, name in wanted.items():
        if not gpu.computes(name):
            usable = [one for one in (FP16, HALF, TF32) if gpu.computes(one)]
            found = f"found {name}, and {gpu.name} (resources.gpu_type) computes in none"
            draft.report.at(key, found, f"use {' or '.join(usable)}, or other GPUs")
            return


_NAMES = {
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp16": ("fp16", "float16", "half", "torch.float16"),
}
_DTYPE = {word: name for name, words in _NAMES.items() for word in words}
_COMMUNICATED = ("fp16", "bf16", "fp32")
_QUANTISED = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


def check(draft: SpecDraft, ranks: int | None) -> None:
    """Report combinations that would fail or do nothing; what is ``auto`` is not judged.

    ``ranks`` are those that see different samples; None if their number is unknown.
    """
    config, report = draft.config, draft.below
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    if stage not in (0, 1, 2, 3):
        return
    _check_types(config, stage, report)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        _check_offload(zero, stage, report)
        _check_quantised(config, zero, stage, draft.gpus, report)
        _check_partition(zero, stage, ranks, report)
    if enabled(config).get("torch_autocast.enabled") == FP16 and stage:
        draft.note(
            f"deepspeed.torch_autocast in float16 with ZeRO stage {stage}: DeepSpeed skips a step "
            "that overflows and never lowers the loss scale; without ZeRO it does"
        )
    if config.get("activation_checkpointing"):
        draft.note(
            "deepspeed.activation_checkpointing is read by deepspeed.checkpointing.configure() "
            "alone, which the program has to call; it recomputes nothing by itself"
        )


def _check_types(config: dict[str, Any], stage: int, report: Reporter) -> None:
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        found = config.get(key)
        if found not in (None, AUTO) and str(found).lower() not in _COMMUNICATED:
            report.at(key, f"found {found!r}; accepted are {', '.join(_COMMUNICATED)}")
    modes = enabled(config)
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


def _check_quantised(
    config: dict[str, Any], zero: dict[str, Any], stage: int, gpus: int, report: Reporter
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


def _check_partition(zero: dict[str, Any], stage: int, ranks: int | None, report: Reporter) -> None:
    part = zero.get("zero_hpz_partition_size")
    if isinstance(part, int) and part > 1:
        at = ("zero_optimization", "zero_hpz_partition_size")
        if stage != 3:
            report.at(at, f"found {part} with ZeRO stage {stage}, where it does nothing")
        elif ranks is not None and ranks % part:
            report.at(at, f"found {part}, which does not divide the {ranks} ranks")
