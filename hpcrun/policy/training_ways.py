"""Which ways to divide and train a model go together in DeepSpeed 0.19.8.

What is not refused here came out equal to one process, for every pair of a layout, a ZeRO stage,
an offload, a precision and an accumulation: tests/run/parallel/test_training_ways.py trains them.
The rest trains wrong without a word, fails once the job runs, or was never tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.policy.batch import AUTO
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.spec.parallel_block import DIVIDING, EXPERT, laid_out

# What DeepSpeed clips gradients at where the configuration says nothing.
CLIPPING = 1.0
# Axes that go together; each also alone, and all of `DIVIDING`.
LAYOUTS = (
    *((axis,) for axis in (*DIVIDING, EXPERT)),
    *(("tensor", "pipeline"), ("tensor", "sequence"), ("pipeline", "sequence")),
    DIVIDING,
)
# Settings of communication and memory with which no layout was tried, and what leaves them off.
_UNTRIED = {
    "fp16.enabled": False,
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.zero_quantized_weights": False,
    "zero_optimization.zero_quantized_nontrainable_weights": False,
    "zero_optimization.zero_quantized_gradients": False,
    "zero_optimization.zenflow": None,
    "zero_optimization.offload_optimizer.super_offload": False,
    "zero_optimization.offload_optimizer.ratio": 1,
    "communication_data_type": None,
    "seq_parallel_communication_data_type": None,
    "compile.deepcompile": False,
    "expert_parallel.enabled": False,
    "hybrid_engine.enabled": False,
    "data_efficiency.enabled": False,
}
# With which no model was tried whose blocks are compiled; and `_UNTRIED`.
_UNTRIED_COMPILED = {
    "torch_autocast.enabled": False,
    "tensor_parallel.autotp_size": 0,
    "zero_optimization.offload_optimizer.device": "none",
    "zero_optimization.offload_param.device": "none",
    "activation_checkpointing": {},
}


@dataclass(frozen=True)
class Refusal:
    """A setting that does not go with the others."""

    key: str
    """Its full key in a spec."""
    found: str
    hint: str


def refusals(parallel: Mapping[str, Any] | None, config: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield what does not go with a layout, the worst first; what is ``auto`` is not judged."""
    axes = laid_out(parallel)
    if not axes:
        return
    stage = _at(config, "zero_optimization.stage") or 0
    clipping = config.get("gradient_clipping", CLIPPING)
    clips = clipping not in (0, AUTO)
    half = any(_at(config, f"{name}.enabled") is True for name in ("bf16", "fp16"))
    at_stage = "deepspeed.zero_optimization.stage"
    if EXPERT in axes:
        yield from _of_experts(axes, stage, clipping if clips else 0)
    if "pipeline" in axes and stage in (2, 3):
        yield Refusal(
            at_stage,
            f"found {stage}; a pipeline keeps its gradients and parameters whole: accepted are 0 "
            "and 1",
            "set it to 1",
        )
    elif "pipeline" in axes and "sequence" in axes and stage == 0:
        yield Refusal(
            at_stage,
            "is 0: in a pipeline DeepSpeed averages gradients over parallel.data alone then, and "
            "never over parallel.sequence, so that the ranks' weights drift apart",
            "set it to 1",
        )
    elif "pipeline" in axes and stage == 0 and not half and clips:
        yield Refusal(
            at_stage,
            f"is 0: in fp32 DeepSpeed clips all stages of a pipeline (at {clipping:g}) by the norm "
            "of the first one's gradients, so that the others train wrong",
            "set it to 1, or deepspeed.gradient_clipping to 0",
        )
    layout = ", ".join(f"parallel.{axis}" for axis in axes)
    for part in ("offload_optimizer", "offload_param"):
        key = f"zero_optimization.{part}.device"
        if _at(config, key) == "nvme":
            found = f"found nvme, which nobody has tried with {layout}"
            yield Refusal(f"deepspeed.{key}", found, "take cpu")
    yield from _untried(layout, config, _UNTRIED)


def of_compiled(spec: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield what does not go with ``optimization.compile``, where a spec has it.

    tests/run/rank/test_model_blocks.py trains the rest, in pairs.
    """
    if not (spec.get("optimization") or {}).get("compile"):
        return
    key = "optimization.compile"
    if spec.get("precision") == "fp8":
        yield Refusal("precision", f"is fp8, which nobody has tried with {key}", "take bf16")
    for axis in laid_out(spec.get("parallel")):
        found = f"divides the model, which nobody has tried with {key}"
        yield Refusal(f"parallel.{axis}", found, f"set {key} to false")
    yield from _untried(key, config, {**_UNTRIED, **_UNTRIED_COMPILED})


def _of_experts(axes: Mapping[str, int], stage: int, clipping: float) -> Iterator[Refusal]:
    if len(axes) > 1:
        others = ", ".join(f"parallel.{axis}" for axis in axes if axis != EXPERT)
        yield Refusal(f"parallel.{EXPERT}", f"does not go with {others}", "leave one of them out")
    key = "deepspeed.zero_optimization.stage"
    if stage == 3:
        yield Refusal(key, "found 3, with which DeepSpeed's MoE does not work", "set it to 2")
    if stage == 0 and clipping:
        found = f"is 0: with divided experts DeepSpeed does not clip (at {clipping:g}) then"
        yield Refusal(key, found, "set it to 1, or deepspeed.gradient_clipping to 0")


def _untried(
    layout: str, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[Refusal]:
    """Yield settings with which such a model was never trained beside a plain one."""
    for key, off in settings.items():
        found = _at(config, key)
        if found not in (None, off, AUTO):
            shown = str(found).lower() if isinstance(found, bool) else found
            shown = "a block" if isinstance(found, Mapping) else shown
            hint = "take bf16" if key == "fp16.enabled" else "leave it out"
            yield Refusal(
                f"deepspeed.{key}", f"found {shown}, which nobody has tried with {layout}", hint
            )


def _at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key with dots; None where a part of it is absent."""
    found: Any = config
    for name in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found
