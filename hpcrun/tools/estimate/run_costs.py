"""What a run costs: its time, hours, energy and money, and its checkpoints. Pure.

Everything that is assumed rather than measured says so in words.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hpcrun.gpu_catalogue import Gpu, operations_per_token
from hpcrun.observe.diagnosis import price_list
from hpcrun.observe.diagnosis.price_list import PriceList
from hpcrun.tools.estimate import memory_formulas
from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.training_setup import TrainingSetup

# The part of the peak rate that training reaches where nothing was measured; --utilization says
# otherwise. Published runs of large transformers on A100 reached 0.3 to 0.57.
UTILIZATION = 0.4
# Bytes a second that one node writes, where no save was measured.
WRITES = 1e9


@dataclass(frozen=True)
class TrainingPace:
    """How fast it trains."""

    step_seconds: float | None
    tokens_per_second: float | None
    source: str
    """``measured by NAME/3``, or what was assumed; empty if it is not known."""


def flops_per_token(model: ModelFacts, setup: TrainingSetup) -> float:
    """Return the floating-point operations of a token, forward and backward.

    Those of `gpu_catalogue.operations_per_token`, and a third more with checkpointing.
    """
    scores = (model.layers or 0) * (model.hidden_size or 0) * (model.sequence_length or 0)
    counted = operations_per_token(model.trainable, model.frozen, scores)
    return counted * (4 / 3 if setup.checkpointing else 1)


def assumed_pace(
    model: ModelFacts, setup: TrainingSetup, gpu: Gpu | None, tokens: int | None, share: float
) -> TrainingPace:
    """Return the pace at a share of the peak of all GPUs; unknown without GPU or tokens."""
    if gpu is None or not tokens:
        return TrainingPace(None, None, "")
    operations = gpu.peak(setup.precision) * share * setup.ranks * setup.model_ranks
    rate = operations / flops_per_token(model, setup)
    said = f"assumed: {100 * share:.0f} % of the peak of {gpu.name}"
    return TrainingPace(tokens / rate, rate, said)


@dataclass(frozen=True)
class RunCosts:
    """What one run takes, in full; None is unknown."""

    steps: int | None
    tokens_per_step: int | None
    pace: TrainingPace
    seconds: float | None
    """Of training, without waiting, starts and saves."""
    unit: str
    """GPU-hours or CPU-hours."""
    devices: int
    """GPUs or processors that are paid for, spare nodes included."""
    hours: float | None
    energy_kwh: float | None
    energy_source: str
    money: float | None
    currency: str
    limit_seconds: float | None
    """Its time limit."""
    limit_hours: float | None
    """The most that one start of it can use."""
    limit_money: float | None
    checkpoint_bytes: float
    save_seconds: float
    save_source: str

    @property
    def starts(self) -> int | None:
        """How many starts it needs within its time limit."""
        if self.seconds is None or not self.limit_seconds:
            return None
        return max(1, -int(-self.seconds // self.limit_seconds))

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "checkpoint_bytes": round(self.checkpoint_bytes)}


@dataclass(frozen=True)
class JobShape:
    """What the costs need to know of a run's job."""

    nodes: int
    gpus: int
    """GPUs of all nodes, spare ones too."""
    cpus: int
    gpu_type: str | None
    limit_seconds: float | None
    steps: int | None
    tokens_per_step: int | None


def costs(
    model: ModelFacts,
    setup: TrainingSetup,
    job: JobShape,
    pace: TrainingPace,
    price: PriceList,
    gpu: Gpu | None,
    saved: tuple[float, str] | None = None,
) -> RunCosts:
    """Return what a run takes. ``saved`` is a measured save in seconds, and by which run."""
    unit, devices = (price_list.GPU, job.gpus) if job.gpus else (price_list.CPU, job.cpus)
    seconds = None
    if job.steps is not None and pace.step_seconds is not None:
        seconds = job.steps * pace.step_seconds
    hours = None if seconds is None else seconds / 3600 * devices
    limit = None if job.limit_seconds is None else job.limit_seconds / 3600 * devices
    watts, source = price.cpu_watts, "cpu_watts of the profile"
    if unit == price_list.GPU:
        watts, source = price.gpu_watts, "gpu_watts of the profile"
        if watts is None and gpu is not None:
            watts = gpu.watts
            source = f"the power limit of {gpu.name}, without the rest of the node"
    size = memory_formulas.checkpoint_bytes(model, setup)
    save = saved or (size / (WRITES * job.nodes), f"assumed: {WRITES / 1e9:g} GB/s of each node")

    def money(of: float | None) -> float | None:
        return None if of is None else price.money(of, unit, job.gpu_type)

    return RunCosts(
        steps=job.steps,
        tokens_per_step=job.tokens_per_step,
        pace=pace,
        seconds=seconds,
        unit=unit,
        devices=devices,
        hours=hours,
        energy_kwh=None if hours is None else price_list.kilowatt_hours(hours, watts),
        energy_source=source if watts is not None else "",
        money=money(hours),
        currency=price.currency,
        limit_seconds=job.limit_seconds,
        limit_hours=limit,
        limit_money=money(limit),
        checkpoint_bytes=size,
        save_seconds=save[0],
        save_source=save[1],
    )
