"""Which settings fit a GPU: the largest micro batches, and what is nearest when nothing fits. Pure.

Memory that a node does not tell is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcrun.gpu_catalogue import Gpu
from hpcrun.tools.estimate import memory_formulas
from hpcrun.tools.estimate.memory_formulas import CONTEXT, FRAGMENTATION, Memory
from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.training_setup import CPU, NONE, TrainingSetup

_MOST_MICRO = 1 << 16
_MOST_RANKS = 1 << 14
# Offload of (optimizer, parameters) by stage, the fastest first.
_OFFLOADS = {
    0: ((NONE, NONE),),
    1: ((NONE, NONE), (CPU, NONE)),
    2: ((NONE, NONE), (CPU, NONE)),
    3: ((NONE, NONE), (CPU, NONE), (CPU, CPU)),
}


@dataclass(frozen=True)
class Setting:
    """One setting, and what fits with it."""

    setup: TrainingSetup
    """With a micro batch of one sample."""
    memory: Memory
    micro: int
    """The largest micro batch that fits; 0 if none does."""
    host_per_node: float
    """Bytes that the ranks of a node hold in its memory."""
    host_fits: bool

    @property
    def fits(self) -> bool:
        return self.micro > 0 and self.host_fits

    def to_data(self) -> dict[str, Any]:
        setup = self.setup
        return {
            "stage": setup.stage,
            "offload_optimizer": setup.offload_optimizer,
            "offload_param": setup.offload_param,
            "activation_checkpointing": setup.checkpointing,
            "fits": self.fits,
            "largest_micro_batch": self.micro if self.memory.knows_activations else None,
            "gpu_bytes": round(self.memory.on_gpu),
            "host_bytes_per_node": round(self.host_per_node),
        }


def usable(gpu: Gpu) -> float:
    """Return the bytes of a GPU that tensors may have."""
    return (gpu.memory - CONTEXT) / (1 + FRAGMENTATION)


def fits(memory: Memory, gpu: Gpu) -> bool:
    """Check that a rank fits a GPU."""
    return memory.on_gpu <= gpu.memory


def largest_micro(model: ModelFacts, setup: TrainingSetup, gpu: Gpu) -> int:
    """Return the largest micro batch that fits; 0 if not even one sample does.

    1 stands for a model whose activations are unknown, if the rest fits.
    """
    least = _MOST_MICRO
    for part, own in memory_formulas.parts(model, replace(setup, micro=1)):
        one = memory_formulas.rank_memory(part, own)
        if not fits(one, gpu):
            return 0
        peaks = memory_formulas.activation_peaks(part, own)
        if peaks is None or not peaks.more:
            least = 1
        else:
            least = min(least, 1 + int((usable(gpu) - one.gpu.backward) / peaks.more))
    return max(1, least)


def setting(
    model: ModelFacts, setup: TrainingSetup, gpu: Gpu, ranks_per_node: int, host: int | None
) -> Setting:
    """Return a setting judged on a GPU, and in nodes with ``host`` bytes (None: not known)."""
    alone = replace(setup, micro=1)
    memory = memory_formulas.rank_memory(model, alone)
    of_node = memory.host.peak * ranks_per_node
    micro = largest_micro(model, alone, gpu)
    return Setting(alone, memory, micro, of_node, host is None or of_node <= host)


def settings(
    model: ModelFacts, setup: TrainingSetup, gpu: Gpu, ranks_per_node: int, host: int | None
) -> list[Setting]:
    """Return every stage, offload and checkpointing on this GPU, the fastest first.

    What moves less data comes first: no offload, no checkpointing, lower stages.
    """
    found = [
        setting(model, one, gpu, ranks_per_node, host)
        for one in _variants(setup)
        if not one.checkpointing or memory_formulas.activation_peaks(model, one) is not None
    ]
    return sorted(found, key=lambda one: (not one.fits, _slowness(one.setup)))


def _variants(setup: TrainingSetup) -> Iterator[TrainingSetup]:
    for stage, offloads in _OFFLOADS.items():
        if stage > 1 and setup.stages > 1:
            continue  # DeepSpeed's pipelines have neither
        if stage == 0 and setup.precision == "fp32" and setup.accumulation_dtype != "fp32":
            continue
        for optimizer, parameters in offloads:
            for checkpointing in (False, True):
                yield replace(
                    setup,
                    stage=stage,
                    offload_optimizer=optimizer,
                    offload_param=parameters,
                    checkpointing=checkpointing,
                    overlap=stage == 3 if stage != setup.stage else setup.overlap,
                )


def _slowness(setup: TrainingSetup) -> tuple[int, ...]:
    offloads = (setup.offload_optimizer != NONE) + 2 * (setup.offload_param != NONE)
    return offloads, int(setup.checkpointing), setup.stage


def ranks_that_fit(model: ModelFacts, setup: TrainingSetup, gpu: Gpu) -> int | None:
    """Return the least power-of-two multiple of the ranks at which a setup fits; None if none."""
    ranks = setup.ranks
    while ranks <= _MOST_RANKS:
        memory = memory_formulas.rank_memory(model, replace(setup, ranks=ranks, micro=1))
        if fits(memory, gpu):
            return ranks * setup.model_ranks
        ranks *= 2
    return None


@dataclass(frozen=True)
class Nearest:
    """What comes nearest where nothing fits."""

    setting: Setting
    short: float
    """Bytes that a GPU lacks."""
    ranks: int | None
    """With so many ranks it fits."""
    gpus: tuple[str, ...]
    """On these GPUs it fits as it is, those with least memory first."""

    def to_data(self) -> dict[str, Any]:
        return {
            **self.setting.to_data(),
            "short_bytes": round(self.short),
            "fits_with_ranks": self.ranks,
            "fits_on": list(self.gpus),
        }


def nearest(
    model: ModelFacts, found: Sequence[Setting], gpu: Gpu, gpus: Sequence[Gpu]
) -> Nearest | None:
    """Return the setting that lacks least of a GPU; None if one fits.

    Those that fit their nodes' memory come first.
    """
    if any(one.fits for one in found) or not found:
        return None
    best = min(found, key=lambda one: (not one.host_fits, one.memory.on_gpu))
    larger = sorted((one for one in gpus if fits(best.memory, one)), key=lambda one: one.memory_gb)
    return Nearest(
        best,
        max(0.0, best.memory.on_gpu - gpu.memory),
        ranks_that_fit(model, best.setup, gpu),
        tuple(one.name for one in larger[:4]),
    )
