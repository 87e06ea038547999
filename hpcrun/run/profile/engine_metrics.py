"""What an engine knows of each step, and is logged without being asked for.

Nothing here waits for a GPU or another rank: what a GPU still computes stays a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcrun import gpu_catalogue
from hpcrun.run.checkpoint import deepspeed_io

if TYPE_CHECKING:
    from hpcrun.run.rank.rank_view import RankView

GRADIENT_NORM, LEARNING_RATE, UTILIZATION = "gradient_norm", "learning_rate", "mfu"
LOSS_SCALE, SKIPPED_STEPS = "loss_scale", "skipped_steps"


class EngineMetrics:
    """Reads an engine after each step: norm of the gradients, learning rate, loss scale, MFU.

    Parameters
    ----------
    estimate
        The block of the spec; empty without one.
    view
        The rank, for its device and its part of the model.
    """

    def __init__(self, estimate: Mapping[str, Any], view: RankView) -> None:
        self._estimate, self._view = estimate, view
        self._rate: float | None = None
        self._least_seconds: float | None = None

    def begin(self, engine: Any) -> None:
        """Take in the engine as it is restored."""
        self._rate = _rate(engine)
        # Of a model that is divided this rank has not all parameters.
        is_whole = not self._view.layout.divided
        operations = operations_per_step(engine, self._estimate) if is_whole else None
        peak = None if operations is None else _peak(engine, self._view.device)
        if operations is not None and peak is not None:
            self._least_seconds = operations / peak / self._view.world_size

    def after_step(self, engine: Any, seconds: float) -> dict[str, Any]:
        """Return the metrics of the step that the engine has taken, in so many seconds.

        What is not known is left out. A scheduler has moved the learning rate on by now; the one
        returned is that of the step.
        """
        found = norm(engine) | _scaling(engine)
        before, self._rate = self._rate, _rate(engine)
        is_scheduled = getattr(engine, "lr_scheduler", None) is not None
        if (rate := before if is_scheduled else self._rate) is not None:
            found[LEARNING_RATE] = rate
        if self._least_seconds is not None and seconds > 0:
            found[UTILIZATION] = self._least_seconds / seconds
        return found


def norm(engine: Any) -> dict[str, Any]:
    """Return the norm of the last step's gradients by its metric's name, where it is known."""
    found = getattr(engine, "get_global_grad_norm", bool)()
    return {} if found is None or found is False else {GRADIENT_NORM: found}


def _scaling(engine: Any) -> dict[str, Any]:
    """Return the loss scale as the step left it, and the steps left out, where DeepSpeed has them.

    That of `torch_autocast` is a tensor, from its first step on.
    """
    found: dict[str, Any] = {}
    for scaler in deepspeed_io.with_scaler(engine, {}).values():
        found[LOSS_SCALE] = scaler._scale
    if getattr(engine, "fp16_enabled", bool)() is True:
        found[LOSS_SCALE] = getattr(engine.optimizer, "loss_scale", None)
    if skipped := getattr(engine, "skipped_steps", 0):
        found[SKIPPED_STEPS] = skipped
    return {name: value for name, value in found.items() if value is not None}


def operations_per_step(engine: Any, estimate: Mapping[str, Any]) -> float | None:
    """Return the floating-point operations of a step; None where they are not known.

    They are where ``estimate.sequence_length`` tells the tokens of a sample, and each token meets
    each parameter once. Layers and width, for attention, are those of ``estimate`` or of a Hugging
    Face model.
    """
    length, module = estimate.get("sequence_length"), getattr(engine, "module", None)
    if not length or module is None or getattr(engine, "has_moe_layers", False):
        return None
    config = getattr(module, "config", None)
    layers = estimate.get("layers") or getattr(config, "num_hidden_layers", 0)
    width = estimate.get("hidden_size") or getattr(config, "hidden_size", 0)
    sizes = {True: 0, False: 0}
    for each in module.parameters():
        sizes[each.requires_grad] += getattr(each, "ds_numel", each.numel())
    token = gpu_catalogue.operations_per_token(
        sizes[True], sizes[False], layers * width * length if layers and width else 0
    )
    return token * float(length) * int(engine.train_batch_size())


def _peak(engine: Any, device: Any) -> float | None:
    """Return the operations a second of this rank's GPU in 16 bits; None for all else."""
    import torch

    is_half = any(
        getattr(engine, name, bool)() is True for name in ("bfloat16_enabled", "fp16_enabled")
    )
    if device.type != "cuda" or not is_half:
        return None
    gpu = gpu_catalogue.of_device(torch.cuda.get_device_name(device))
    return None if gpu is None else gpu.peak(gpu_catalogue.HALF)


def _rate(engine: Any) -> float | None:
    groups: Any = getattr(getattr(engine, "optimizer", None), "param_groups", None) or ({},)
    rate = groups[0].get("lr")
    return float(rate) if isinstance(rate, (int, float)) else None
