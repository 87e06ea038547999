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
    """Optimizer steps over which the learning rate rises in equal parts, the first of them not
    zero."""

    decay: Literal["constant", "linear", "cosine", "step"] | None = None
    """What follows: no change, a line or half a cosine down to ``end``, or a factor at each of
    ``milestones``. Null makes no schedule, unless there is a ``warmup``, after which the rate is
    constant; ``deepspeed.scheduler`` is then as it is written."""

    end: float = 0
    """The part of the learning rate that is left after ``total_steps`` of ``linear`` or
    ``cosine``."""

    milestones: list[float] = field(default_factory=list)
    """Steps of ``step``, in ascending order, after each of which the rate is multiplied by
    ``factor``: ``[0.5, 0.75]``."""

    factor: float = 0.1
    """See ``milestones``."""

    total_steps: int | None = None
    """Optimizer steps of the run, such as ``${config.total_steps}``; where ``decay`` or a fraction
    needs them."""

    scale_lr: Literal["linear", "sqrt"] | None = None
    """Multiply the learning rates that the DeepSpeed configuration gives by the global batch
    divided by ``reference_batch``, or by the square root of that, as the spec is compiled."""

    reference_batch: int | None = None
    """The global batch that the learning rate is right for."""

    layer_decay: float | None = None
    """The last layers have the learning rate as it is, each layer before has this much of the
    next one's: ``0.8``."""

    weight_decay_on: Literal["all", "matrices"] = "all"
    """The parameters whose weights decay; ``matrices`` leaves out those of less than two
    dimensions: biases and norms."""

    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay, such as ``0.999``, in fp32
    on every rank: for ``session.averaged_weights()`` and ``hpcrun weights --averaged``. Not for
    ZeRO 3 and models that are divided."""

    ema_every: int = 1
    """Optimizer steps between two updates of the average, which reach as far back."""
