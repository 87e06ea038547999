"""Models that are divided between ranks, by DeepSpeed's AutoTP or as a pipeline.

AutoTP of DeepSpeed 0.19.8 asserts the batch triple for all ranks, unless ``deepspeed.initialize``
is given the groups of ranks that hold one copy of the model together. What makes these is private
(``deepspeed.utils.groups``); tests/run/rank/test_model_parallel.py holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.errors import UsageError


def tensor_parallel_size(config: Mapping[str, Any]) -> int:
    """Return ``tensor_parallel.autotp_size`` of a DeepSpeed configuration; 1 without it."""
    block = config.get("tensor_parallel")
    size = block.get("autotp_size") if isinstance(block, Mapping) else None
    return size if isinstance(size, int) and size > 1 else 1


def initialize(model: Any, arguments: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """``deepspeed.initialize`` with the groups of AutoTP; raise UsageError for a wrong engine."""
    import deepspeed
    from deepspeed.utils import groups

    config = arguments.get("config")
    tensor = tensor_parallel_size(config) if isinstance(config, Mapping) else 1
    if tensor > 1 and "mpu" not in arguments:
        groups._init_tp_mesh_device(tensor_model_parallel_size=tensor)
        arguments = {**arguments, "mpu": groups}
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, **arguments)
    _check(engine)
    return engine, optimizer, loader, scheduler


def _check(engine: Any) -> None:
    """Raise UsageError for an engine that would train wrong without a word.

    A pipeline in fp32 without ZeRO clips every stage's gradients by the norm of the first one's
    parameters; DeepSpeed clips at 1.0 where the configuration says nothing.
    """
    clipping = float(engine.gradient_clipping() or 0.0)
    if (
        getattr(engine, "pipeline_parallelism", False)
        and getattr(engine, "num_stages", 1) > 1
        and engine.zero_optimization_stage() == 0
        and not (engine.bfloat16_enabled() or engine.fp16_enabled())
        and clipping > 0
    ):
        raise UsageError(
            f"this pipeline trains in fp32 without ZeRO, and clips gradients at {clipping:g}: "
            "DeepSpeed takes the norm of the first stage for that of all, so that the others train "
            "wrong",
            hint="set deepspeed.zero_optimization.stage to 1, or deepspeed.gradient_clipping to 0",
        )
