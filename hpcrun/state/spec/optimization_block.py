"""The ``optimization`` block of a spec: the learning rate over steps, batch sizes and layers."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Optimization:
    """What ``session.initialize`` makes of the learning rate and the weight decay that
    ``deepspeed.optimizer.params`` gives; see docs/optimizers.md. A number of steps below 1 is a
    fraction of ``total_steps``."""

    warmup: float = 0
    """Optimizer steps over which the learning rate rises in equal parts."""

    decay: Literal["constant", "linear", "cosine", "step"] | None = None
    """What follows: no change, a line or half a cosine down to ``end``, or a factor at each of
    ``milestones``. Null makes no schedule without a ``warmup``, and a constant rate after one."""

    end: float = 0
    """The part of the learning rate that is left after ``total_steps``."""

    milestones: list[float] = field(default_factory=list)
    """Steps of ``step``, in ascending order, after each of which the rate is multiplied by
    ``factor``: ``[0.5, 0.75]``."""

    factor: float = 0.1
    """See ``milestones``."""

    total_steps: int | None = None
    """Optimizer steps of the run, such as ``${config.total_steps}``, where they are needed."""

    scale_lr: Literal["linear", "sqrt"] | None = None
    """Multiply the learning rates of the DeepSpeed configuration by the global batch divided by
    ``reference_batch``, or by the square root of that."""

    reference_batch: int | None = None
    """The global batch that the learning rate is right for."""

    layer_decay: float | None = None
    """Each layer has this much of the next one's learning rate: ``0.8``; the last ones have all of
    it."""

    weight_decay_on: Literal["all", "matrices"] = "all"
    """The parameters whose weights decay; ``matrices`` leaves out biases and norms (less than two
    dimensions)."""

    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay, such as ``0.999``, in fp32
    on every rank. Not for ZeRO 3 and models that are divided."""

    ema_every: int = 1
    """Optimizer steps between two updates of the average."""
