"""Matrices that a tensor group holds together, by DeepSpeed's AutoTP.

A model says which of its linear layers are divided, and how, in Hugging Face's words: a module's
``tensor_parallel_plan`` names children as ``colwise`` (each rank has some of the outputs) or
``rowwise`` (each rank has some of the inputs, and the outputs are summed). A Hugging Face model's
own plan is DeepSpeed's business, and a spec's ``tensor_parallel.partition_config`` wins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from hpcrun.errors import UsageError

PLAN = "tensor_parallel_plan"
_STYLES = {"colwise": "column", "rowwise": "row"}


def partition_config(model: Any) -> dict[str, Any] | None:
    """Return the plans of a model's modules as DeepSpeed's ``partition_config``; None without any.

    Raises as `named_styles`.
    """
    patterns: dict[str, list[str]] = {}
    for name, style in named_styles(model):
        pattern = rf"(?:.*\.)?{re.escape(name)}\.(?:weight|bias)$"
        patterns.setdefault(_STYLES[style], []).append(pattern)
    if not patterns:
        return None
    specs = [{"patterns": found, "partition_type": kind} for kind, found in patterns.items()]
    return {"use_default_specs": False, "layer_specs": specs}


def named_styles(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the full names in the plans of a model's modules, and their styles.

    Raises UsageError for a plan that names no linear layer, or a style that is unknown.
    """
    import torch

    for name, module in model.named_modules():
        for child, style in (getattr(module, PLAN, None) or {}).items():
            where = f"{type(module).__name__}.{PLAN}"
            if style not in _STYLES:
                raise UsageError(f"{where}: found {style!r}; accepted are {', '.join(_STYLES)}")
            if not isinstance(getattr(module, child, None), torch.nn.Linear):
                raise UsageError(f"{where} names {child!r}, which is no torch.nn.Linear of it")
            yield f"{name}.{child}" if name else child, style


def use(tensor: Any, data: Any) -> None:
    """Let AutoTP use these process groups in place of its own."""
    from deepspeed.utils import groups

    groups._TENSOR_MODEL_PARALLEL_GROUP = groups._MODEL_PARALLEL_GROUP = tensor
    groups._DATA_PARALLEL_GROUP = data


def divide(model: Any, config: dict[str, Any], group: Any, stages: Any) -> None:
    """Divide a pipeline's stage as DeepSpeed's engine divides a whole model; in place.

    The engine itself would put its own groups in place of the pipeline's. What is used here is
    private; tests/run/parallel holds it.

    ``config`` is the block ``tensor_parallel`` of DeepSpeed's configuration, with its partition;
    ``group`` and ``stages`` are the process groups of the tensor and of the pipeline axis.
    """
    import torch
    from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO
    from deepspeed.module_inject import layers
    from deepspeed.module_inject.auto_tp import AutoTP
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig

    typed = TPTrainingConfig(**config)
    layers.set_autotp_mode(training=True)
    layers.configure_tensor_parallel_runtime(typed)
    divider = AutoTP(
        module=model,
        all_reduce_linears=(),
        prefix="",
        state_dict=None,
        linear_layer_setting=(torch.nn.Linear, torch.nn.Embedding),
        orig_layer_impl=None,
        keep_module_on_host=typed.keep_module_on_host,
        partition_config=typed.get_partition_config_object(),
        vocab_parallel_lm_head=False,
        model_config=None,
        tp_grain_size=1,
        training_mode=True,
    )
    divider.set_tensor_parallel_config(typed.autotp_size, group)
    divider.update_linear_policies()
    divider._replace_module(model)
    divider.register_replicated_grad_hooks(model)
    # DeepSpeed converts a checkpoint by the rules of its first stage.
    found: list[dict[str, Any]] = [{}] * stages.size()
    own = layers.collect_autotp_universal_checkpoint_info(model)
    torch.distributed.all_gather_object(found, own, group=stages)
    rules = functools.reduce(_merge, found)
    setattr(
        model, UNIVERSAL_CHECKPOINT_INFO, {**getattr(model, UNIVERSAL_CHECKPOINT_INFO, {}), **rules}
    )


def _merge(one: Any, other: Any) -> Any:
    """Return the rules of two stages together."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            key: _merge(one[key], other[key]) if key in one and key in other else value
            for key, value in {**one, **other}.items()
        }
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *(each for each in other if each not in one)]
    return one


def check_divided(model: Any) -> None:
    """Raise UsageError if no layer of a model was divided: each rank would train all of it."""
    from deepspeed.module_inject.layers import TensorParallel_Layer

    if not any(isinstance(module, TensorParallel_Layer) for module in model.modules()):
        raise UsageError(
            "parallel.tensor divides no layer of this model: no module has a "
            f"{PLAN}, and DeepSpeed knows no plan of its own for it",
            hint=f'give its blocks one, such as {PLAN} = {{"q": "colwise", "out": "rowwise"}}; '
            "see docs/parallelism.md",
        )
