"""The precision of a rank: what its device has, TF32 by variables, fp8 by a library.

Untested on a GPU: the tests have stand-ins for devices and for the libraries of fp8.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import UsageError

FP32, TF32, BF16, FP16, FP8 = "fp32", "tf32", "bf16", "fp16", "fp8"
# The compute capability of NVIDIA's GPUs from which each has units.
_CAPABILITY = {TF32: (8, 0), BF16: (8, 0), FP8: (8, 9)}
# torchao's and Transformer Engine's kernels take matrices whose sides are multiples of this.
_FP8_SIDES = 16
# Read by CUDA's libraries, and by torch as it is imported.
_VARIABLES = {
    FP32: {"NVIDIA_TF32_OVERRIDE": "0"},
    TF32: {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
}


def variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that a spec's ``precision`` sets for its ranks."""
    if not (spec.get("resources") or {}).get("gpus_per_node"):
        return {}
    return _VARIABLES.get(str(spec.get("precision")), {})


def check(spec: Mapping[str, Any], config: Any, device: Any) -> None:
    """Raise UsageError if this rank's GPU has no units for what the run computes in.

    torch would emulate bf16 there, many times slower, and DeepSpeed takes that for support. Of a
    DeepSpeed configuration a mapping alone is looked at; ``device`` is the rank's.
    """
    if device.type != "cuda":
        return
    import torch

    if torch.version.hip is not None:
        return
    capability = torch.cuda.get_device_capability(device)
    for key, wanted in _precision_keys(spec, config).items():
        least = _CAPABILITY.get(wanted)
        if least is not None and capability < least:
            raise UsageError(
                f"{key} asks for {wanted}, and the GPU of this node has none: "
                f"{torch.cuda.get_device_name(device)} of compute capability "
                f"{capability[0]}.{capability[1]}, which has to be {least[0]}.{least[1]} or more",
                hint="use fp16 or fp32, or ask for other GPUs by resources.gpu_type",
            )


def _precision_keys(spec: Mapping[str, Any], config: Any) -> dict[str, str]:
    """Return the keys that ask for a precision, and which."""
    found = {"precision": str(spec.get("precision"))}
    for block in ("bf16", "bfloat16", "torch_autocast") if isinstance(config, Mapping) else ():
        given = config.get(block)
        if isinstance(given, Mapping) and given.get("enabled") is True:
            dtype = str(given.get("dtype", "bfloat16")) if block == "torch_autocast" else BF16
            is_half = dtype in ("float16", "torch.float16", FP16)
            found[f"deepspeed.{block}.enabled"] = FP16 if is_half else BF16
    return found


def in_fp8(model: Any, spec: Mapping[str, Any]) -> Any:
    """Return the model with its linear layers in fp8, where the spec asks for that.

    With torchao, linear layers are converted whose sides are multiples of 16. Without it a model
    of Transformer Engine's own layers runs in its ``autocast``. Raises UsageError where neither can
    be.
    """
    if spec.get("precision") != FP8:
        return model
    if (torchao := _library("torchao.float8")) is not None:
        torchao.convert_to_float8_training(model, module_filter_fn=_fits_fp8)
        return model
    engine = _library("transformer_engine.pytorch")
    if engine is not None and any(
        type(one).__module__.startswith("transformer_engine.") for one in model.modules()
    ):
        return _in_autocast(model, engine)
    missing = "torchao is not installed"
    if engine is not None:
        missing += ", and the model has no layer of Transformer Engine, which is"
    raise UsageError(
        f"precision asks for fp8, and {missing}",
        hint="install torchao in the job's Python, or use precision: bf16",
    )


def _fits_fp8(module: Any, _name: str) -> bool:
    sides = (getattr(module, "in_features", 1), getattr(module, "out_features", 1))
    return all(side % _FP8_SIDES == 0 for side in sides)


def _in_autocast(model: Any, engine: Any) -> Any:
    """Wrap the model's forward pass in Transformer Engine's autocast, and return the model."""
    forward = model.forward
    autocast = getattr(engine, "autocast", None) or engine.fp8_autocast

    def forward_in_fp8(*arguments: Any, **named: Any) -> Any:
        with autocast(enabled=True):
            return forward(*arguments, **named)

    model.forward = forward_in_fp8
    return model


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
