"""The precision of a run: DeepSpeed's keys for it, and whether its devices have it.

DeepSpeed 0.19.8 has keys for bf16, fp16 and autocast, and none for TF32 and fp8: these are the
ranks' (`hpcrun.run.rank.device_precision`).
"""

from __future__ import annotations

from typing import Any

from hpcrun import gpu_catalogue
from hpcrun.compile.source.marked_tree import get_at
from hpcrun.compile.source.problems import Reporter
from hpcrun.errors import UsageError
from hpcrun.gpu_catalogue import FP8, FP32, HALF, TF32
from hpcrun.policy.batch import AUTO

FP16 = "fp16"
# torch_autocast.dtype -> precision.
_AUTOCAST = {
    **{"bfloat16": HALF, "torch.bfloat16": HALF, "bf16": HALF},
    **{"float16": FP16, "torch.float16": FP16, "fp16": FP16},
}
# precision -> what DeepSpeed's keys may say beside it.
_GOES_WITH = {FP32: (), TF32: (), HALF: (HALF,), FP16: (FP16,), FP8: (HALF,)}
_TRAINERS = ("accelerate", "composer", "huggingface", "lightning")


def enabled(config: dict[str, Any]) -> dict[str, str]:
    """Return the keys of a DeepSpeed configuration that lower the precision, and to what."""
    found = {
        f"{block}.enabled": name
        for block, name in (("bf16", HALF), ("bfloat16", HALF), ("fp16", FP16))
        if get_at(config, (block, "enabled")) is True
    }
    if get_at(config, ("torch_autocast", "enabled")) is True:
        dtype = str(get_at(config, ("torch_autocast", "dtype"), "bfloat16"))
        found["torch_autocast.enabled"] = _AUTOCAST.get(dtype, HALF)
    return found


def filled(
    config: dict[str, Any],
    precision: str,
    kind: str | None,
    framework: str,
    gpus: int,
    report: Reporter,
) -> dict[str, Any]:
    """Return the DeepSpeed configuration with the keys of ``precision``; report what conflicts.

    Parameters
    ----------
    config
        The DeepSpeed configuration; empty for a program without one.
    precision
        The spec's.
    kind
        The kind of the entry; None if it was not found.
    framework
        The name of what the program trains with.
    gpus
        GPUs of a node.
    report
        For keys of the whole spec.
    """
    if precision == AUTO or kind is None:
        return config
    said = f"found {precision}"
    for key, other in enabled(config).items():
        if other not in _GOES_WITH[precision]:
            report.at("precision", f"{said}, and deepspeed.{key} is {other}", "give one of them")
            return config
    if precision in (TF32, FP8) and gpus == 0:
        report.at("precision", f"{said}, and processors have none (gpus_per_node is 0)", "use bf16")
        return config
    if precision in (FP32, TF32):
        return config
    if framework in _TRAINERS:
        found = f"{said}, and {framework} takes the precision from the program's own flags"
        report.at("precision", found, "leave it out, and give the program its flag")
        return config
    if not config:
        found = f"{said}, and there is no DeepSpeed configuration that says it to the program"
        report.at("precision", found, "give deepspeed_config or deepspeed, or the program's flag")
        return config
    if enabled(config):
        return config
    if precision != FP16:
        return {**config, "bf16": {**(config.get("bf16") or {}), "enabled": True}}
    if gpus:
        return {**config, "fp16": {**(config.get("fp16") or {}), "enabled": True}}
    # DeepSpeed takes fp16 itself on few processors.
    return {**config, "torch_autocast": {"enabled": True, "dtype": "float16"}}


def check_gpu(
    config: dict[str, Any], precision: str, gpus: int, gpu_type: str | None, report: Reporter
) -> None:
    """Report a precision that the type of GPU has no units for; unknown types have all.

    ``report`` is for keys of the whole spec.
    """
    if not gpus or gpu_type is None:
        return
    try:
        gpu = gpu_catalogue.find(gpu_type)
    except UsageError:
        return
    wanted = {f"deepspeed.{key}": name for key, name in enabled(config).items()}
    wanted["precision"] = precision
    for key, name in wanted.items():
        if not gpu.computes(name):
            usable = [one for one in (FP16, HALF, TF32) if gpu.computes(one)]
            found = f"found {name}, and {gpu.name} (resources.gpu_type) computes in none"
            report.at(key, found, f"use {' or '.join(usable)}, or other GPUs")
            return
