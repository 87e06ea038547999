"""The formulas of memory: what a rank holds of a model. Pure.

Each trainable parameter has the bytes that it computes with (bf16 and fp16 2, fp32 4), as many or
more for its gradient, 4 for a master weight, and the optimizer's states (Adam 8, momentum, Adagrad,
RMSprop and Lion 4, plain SGD 0). ZeRO 1 divides master weights and states between ranks, ZeRO 2
gradients too, ZeRO 3 all (Rajbhandari et al., arXiv:1910.02054); buckets, and at stage 3 what is
gathered, come on top. Activations: Korthikanti et al., arXiv:2205.05198, equation 2; operations:
Chowdhery et al., arXiv:2204.02311, appendix B.

`rank_memory` is what DeepSpeed 0.19.8 does, which differs in places from the ZeRO paper: it was
measured on CPU ranks (``bench/estimate.py``), and `tests.tools.estimate` holds it to that. Where it
is not known how model-parallel ranks divide a model, `share` is the most that one may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from hpcrun.tools.estimate.model_facts import ModelFacts, Peaks
from hpcrun.tools.estimate.training_setup import BF16, BYTES, FP32, NONE, NVME, TrainingSetup

# What a process holds on a GPU before any tensor: CUDA's context, NCCL's buffers, workspaces.
CONTEXT = 1_500_000_000
# The part of a GPU that is left over: blocks of an allocator do not fit together exactly.
FRAGMENTATION = 0.03


@dataclass(frozen=True)
class Share:
    """Elements that one rank has of the parameters."""

    whole: int
    """All of them, on a rank of the model-parallel group."""
    part: int
    """Its partition, padding included; `whole` if ZeRO divides nothing."""
    touched: int
    """Elements of the parameters that lie in its partition, wholly or in part."""
    frozen: int
    frozen_part: int
    persistent: int
    """Elements of the small parameters that stage 3 keeps whole."""
    largest: int


def parts(model: ModelFacts, setup: TrainingSetup) -> list[tuple[ModelFacts, TrainingSetup]]:
    """Return the stages of a pipeline that are known, each with its setup; else the model alone."""
    if setup.stages == 1 or len(model.stages) != setup.stages:
        return [(model, setup)]
    own = replace(setup, model_ranks=setup.model_ranks // setup.stages, stages=1)
    begun = (min(setup.stages - place, setup.accumulation) for place in range(setup.stages))
    return [(replace(one, in_flight=n), own) for one, n in zip(model.stages, begun, strict=True)]


def is_known(model: ModelFacts, setup: TrainingSetup) -> bool:
    """Check whether it is known how model-parallel ranks divide the parameters."""
    return all(
        own.model_ranks == own.tensor and (own.tensor == 1 or part.divided is not None)
        for part, own in parts(model, setup)
    )


def _uneven(model: ModelFacts) -> float:
    """Return elements that may lie whole on one rank: embedding and head.

    Of a model of which only the number is known they are taken as a transformer's, whose layers
    (12 h^2 elements) are one for each 128 of its width h, with a vocabulary of 256,000.
    """
    if model.sizes:
        return sum(sorted((*model.sizes, *model.frozen_sizes))[-2:])
    width = model.hidden_size or (model.parameters * 128 / 12) ** (1 / 3)
    return 2 * width * (model.vocabulary or 256_000)


def _of_rank(
    sizes: Sequence[int],
    total: int,
    divided: Sequence[int] | None,
    setup: TrainingSetup,
    whole: float,
) -> tuple[list[int], int]:
    """Return the sizes of parameters on one rank, and their sum; ``whole`` are not divided."""
    of = setup.model_ranks
    if divided is not None and of == setup.tensor and len(divided) == len(sizes):
        found = [
            -(-size // of) if does else size for size, does in zip(sizes, divided, strict=True)
        ]
        return found, sum(found) if sizes else -(-total // of)
    found = [-(-size // of) for size in sizes]
    more = round(min(whole, total) * (1 - 1 / of))
    if found and more:
        found.append(more)
    return found, sum(found) if found else -(-total // of) + more


def share(model: ModelFacts, setup: TrainingSetup, *, even: bool = False) -> Share:
    """Return the share of the rank that holds most; where that is not known, the most it may be.

    ``even`` takes the ranks to divide all parameters evenly where it is not known.
    """
    ranks, uneven = setup.ranks, 0 if even else _uneven(model)
    sizes, whole = _of_rank(model.sizes, model.trainable, model.divided, setup, uneven)
    frozen_sizes, frozen = _of_rank(
        model.frozen_sizes, model.frozen, model.frozen_divided, setup, uneven
    )
    largest = max((*sizes, *frozen_sizes), default=0)
    if setup.stage == 3:
        part = sum(-(-size // ranks) for size in sizes) if sizes else -(-whole // ranks)
        kept = sum(size for size in (*sizes, *frozen_sizes) if size <= setup.persistence)
        if ranks == 1:
            kept = 0  # its part is the whole
        frozen_part = sum(-(-size // ranks) for size in frozen_sizes)
        frozen_part = frozen_part or -(-frozen // ranks)
        return Share(whole, part, part, frozen, frozen_part, kept, largest)
    if setup.stage == 0:
        return Share(whole, whole, whole, frozen, frozen, 0, largest)
    unit = 2 * ranks  # the flat buffer is a multiple of it
    part = -(-whole // unit) * unit // ranks
    touched = _touched(sizes, part) if sizes else part
    return Share(whole, part, touched, frozen, frozen, 0, largest)


def _touched(sizes: Sequence[int], part: int) -> int:
    """Return the most elements of parameters that one partition of ``part`` elements touches."""
    if not part:
        return 0
    touched: dict[int, int] = {}
    start = 0
    for size in sizes:
        if size:
            first, last = start // part, (start + size - 1) // part
            # Between its ends a parameter that is longer than a partition is alone.
            for one in {first, min(first + 1, last), last}:
                touched[one] = touched.get(one, 0) + size
        start += size
    return max(touched.values(), default=0)


@dataclass(frozen=True)
class Held:
    """Bytes that a rank holds in one place, by what they are."""

    parameters: float = 0
    gradients: float = 0
    """As backward ends; in a step they may take more, see ``stepping``."""
    optimizer: float = 0
    """Master weights and the optimizer's own states."""
    buffers: float = 0
    """Buckets of communication, buffers of the model, and what only lies there."""
    gathered: float = 0
    """Parameters that stage 3 has collected for the layers that it computes."""
    activations: float = 0
    stepping: float = 0
    """What a step of the optimizer holds beside parameters, states and buffers."""

    @property
    def states(self) -> float:
        """Parameters, gradients and optimizer."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def backward(self) -> float:
        """The most in forward and backward."""
        return self.states + self.buffers + self.gathered + self.activations

    @property
    def step(self) -> float:
        """The most in a step of the optimizer."""
        return self.parameters + self.optimizer + self.buffers + self.stepping

    @property
    def peak(self) -> float:
        return max(self.backward, self.step)

    def to_data(self) -> dict[str, float]:
        return {**asdict(self), "peak": self.peak}

    def rounded(self) -> Held:
        """Return the same in whole bytes."""
        return replace(self, **{one.name: round(getattr(self, one.name)) for one in fields(self)})


@dataclass(frozen=True)
class Memory:
    """What one rank holds on its GPU, in its node's memory, and on its node's NVMe."""

    gpu: Held
    host: Held
    nvme: float = 0
    knows_activations: bool = True
    stage: int | None = None
    """The stage of a pipeline that this is, from 0; None without stages that are known."""
    least: float | None = None
    """The peak on the GPU if the model-parallel ranks divide all evenly; None if it is known how
    they divide the model."""

    @property
    def on_gpu(self) -> float:
        """Bytes that the GPU must have, with CUDA's own."""
        return with_context(self.gpu.peak)

    @property
    def at_least(self) -> float:
        """Bytes of the peak on the GPU, at least."""
        return self.gpu.peak if self.least is None else self.least

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        return {
            "gpu": self.gpu.to_data(),
            "host_per_rank": self.host.to_data(),
            "nvme_per_rank": round(self.nvme),
            "needed_on_gpu": round(self.on_gpu),
            "needed_on_gpu_least": None if self.least is None else round(with_context(self.least)),
            "stage": self.stage,
            "knows_activations": self.knows_activations,
        }


def with_context(peak: float) -> float:
    """Return what a GPU must have for tensors of so many bytes."""
    return peak * (1 + FRAGMENTATION) + CONTEXT


def rank_memory(model: ModelFacts, setup: TrainingSetup) -> Memory:
    """Return what a rank holds, that with the most of it."""
    each = parts(model, setup)
    found = [_memory_of(part, own) for part, own in each]
    most = max(found, key=lambda one: one.gpu.peak)
    if not is_known(model, setup):
        least = max(_memory_of(part, own, even=True).gpu.peak for part, own in each)
        most = replace(most, least=least)
    return replace(most, stage=found.index(most)) if len(found) > 1 else most


def _memory_of(model: ModelFacts, setup: TrainingSetup, *, even: bool = False) -> Memory:
    own = share(model, setup, even=even)
    w, a = setup.width, BYTES[setup.accumulation_dtype]
    master = (w if setup.low_master else 4) * own.part
    states = _state_bytes(model, setup) * own.part
    # Muon's momentum, and the next one, which waits for the check of overflows, are of whole
    # parameters.
    momentum = w * own.touched * _muon_share(model, setup)
    states += momentum - w * own.part * _muon_share(model, setup)
    activations = activation_bytes(model, setup, even=even)
    gpu = Held(
        parameters=_parameters(own, setup),
        buffers=model.buffer_bytes + _dead_states(own, setup),
        gathered=_gathered_bytes(own, setup),
        activations=activations or 0,
    )
    if setup.stage == 0:
        gpu = _without_zero(gpu, own, setup, states)
    elif setup.stage == 3:
        gpu = _stage_3(gpu, own, setup, master + states, a)
    else:
        gpu = _stages_1_and_2(gpu, own, setup, master + states, a)
        gpu = replace(gpu, gradients=gpu.gradients + momentum)
    host, nvme = _on_host(own, setup, master, states, a)
    return Memory(gpu.rounded(), host.rounded(), round(nvme), activations is not None)


def _state_bytes(model: ModelFacts, setup: TrainingSetup) -> float:
    """Return the bytes of each parameter that the optimizer keeps, beside master weights."""
    width = setup.width if setup.low_states else 4
    matrices = _muon_share(model, setup)
    # Muon keeps one number of a matrix, in the type of its gradient, and of the rest Adam's two.
    return setup.width * matrices + (1 - matrices) * width * setup.numbers


def _muon_share(model: ModelFacts, setup: TrainingSetup) -> float:
    """Return the part of the trainable parameters that Muon updates; Adam updates the rest."""
    if setup.optimizer != "muon" or model.muon_parameters is None or not model.trainable:
        return 0.0
    return min(1.0, model.muon_parameters / model.trainable)


def _parameters(own: Share, setup: TrainingSetup) -> float:
    if setup.stage < 3:
        return setup.width * (own.whole + own.frozen)
    kept = 0 if setup.offload_param != NONE else own.part + own.frozen_part
    return setup.width * (kept + own.persistent)


def _gathered_bytes(own: Share, setup: TrainingSetup) -> float:
    """Return the bytes of parameters that stage 3 has at hand, beyond those that it keeps."""
    if setup.stage < 3 or setup.ranks == 1:
        return 0
    all_of_them = own.whole + own.frozen - own.persistent
    ahead = max(setup.prefetch_bucket, own.largest)
    return setup.width * max(0, min(all_of_them, min(setup.max_live, setup.max_reuse) + ahead))


def _dead_states(own: Share, setup: TrainingSetup) -> float:
    """Return what torch's Adagrad makes for the undivided parameters, which ZeRO never frees."""
    return setup.width * own.whole if setup.optimizer == "adagrad" and setup.stage else 0


def _torch_step(own: Share, setup: TrainingSetup) -> float:
    """Return the copy that torch's own optimizers make as they step on a GPU (``foreach``)."""
    if not setup.is_torch or setup.optimizer == "sgd" or setup.offload_optimizer != NONE:
        return 0
    return 4 * (min(own.part, setup.sub_group) if setup.stage == 3 else own.part)


def _without_zero(gpu: Held, own: Share, setup: TrainingSetup, states: float) -> Held:
    """Stage 0: all on every rank; of 16 bits also master weights, and their gradients in a step."""
    gradients = setup.width * own.whole
    low = setup.precision != FP32
    return replace(
        gpu,
        gradients=gradients,
        optimizer=states + (4 * own.whole if low else 0),
        # A bucket is copied to be averaged.
        buffers=gpu.buffers + setup.width * min(own.whole, setup.reduce_bucket),
        stepping=gradients + (4 * own.whole if low else 0) + _torch_step(own, setup),
    )


def _stages_1_and_2(gpu: Held, own: Share, setup: TrainingSetup, optimizer: float, a: int) -> Held:
    """Stages 1 and 2: the optimizer's states are divided, at stage 2 the gradients too."""
    w, several = setup.width, setup.accumulation > 1
    offloaded = setup.offload_optimizer != NONE
    # The bucket has its full size, however small the model is.
    bucket = (a if setup.stage == 1 else w) * setup.reduce_bucket * (1 + setup.overlap)
    whole = setup.stage == 1 and setup.precision == BF16 and a == 4 and not offloaded
    if whole:
        # DeepSpeed's BF16_Optimizer sums up all gradients in fp32, beside those of backward.
        gradients: float = (w + 4) * own.whole
        stepping, bucket = 4.0 * own.whole, 0
    elif setup.stage == 1 and several:
        gradients = a * own.whole
        stepping = 4.0 * own.part
    else:
        gradients = _partition_sums(own, setup, a)
        stepping = 4.0 * own.part
    if offloaded:
        gradients = gradients if setup.stage == 1 and several else 0
        bucket += w * own.largest
        stepping, optimizer = 0, 0
    elif not whole:
        # Gradients are flattened, then made fp32, before the first copies go.
        stepping += w * own.part if w == 4 else (w + a) * own.part
    return replace(
        gpu,
        gradients=gradients,
        optimizer=optimizer,
        buffers=gpu.buffers + bucket,
        stepping=stepping + _torch_step(own, setup),
    )


def _partition_sums(own: Share, setup: TrainingSetup, a: int) -> float:
    """Return a partition's gradients: whole parameters, or of another type a flat buffer."""
    if setup.accumulation > 1 and a != setup.width:
        return a * own.part
    return setup.width * own.touched


def _stage_3(gpu: Held, own: Share, setup: TrainingSetup, optimizer: float, a: int) -> Held:
    """Stage 3: gradients lie in a flat buffer of the rank's part, for good."""
    bucket = setup.width * setup.reduce_bucket
    if setup.offload_optimizer != NONE:
        return replace(gpu, buffers=gpu.buffers + bucket)
    group = min(own.part, max(setup.sub_group, own.largest // setup.ranks))
    return replace(
        gpu,
        gradients=a * own.part,
        optimizer=optimizer,
        buffers=gpu.buffers + bucket,
        stepping=a * own.part + 4 * group + _torch_step(own, setup),
    )


def _on_host(
    own: Share, setup: TrainingSetup, master: float, states: float, a: int
) -> tuple[Held, float]:
    """Return what a rank holds in its node's memory, and on NVMe."""
    w = setup.width
    weights = w * (own.part + own.frozen_part) if setup.offload_param != NONE else 0
    nvme = 0.0
    if setup.offload_param == NVME:
        nvme, weights = weights, w * min(own.part, 5 * 100_000_000)
    if setup.offload_optimizer == NONE:
        return Held(parameters=weights), nvme
    gradients, buffers = 4.0 * own.part, 0.0
    if setup.stage == 3:
        gradients += a * own.part
    else:
        buffers = w * own.part + w * own.largest
        if setup.stage == 2 and setup.accumulation > 1:
            gradients += _partition_sums(own, setup, a)
    optimizer = master + states
    if setup.offload_optimizer == NVME:
        # Buffers for four sub-groups stay in memory.
        nvme += optimizer
        optimizer = (master + states) / max(own.part, 1) * min(own.part, 4 * setup.sub_group)
    return Held(weights, gradients, optimizer, buffers), nvme


def activation_bytes(
    model: ModelFacts, setup: TrainingSetup, *, even: bool = False
) -> float | None:
    """Return what forward and backward hold beside the states, at most; None if unknown."""
    peaks = activation_peaks(model, setup, even=even)
    return None if peaks is None else peaks.of(setup.micro)


def activation_peaks(
    model: ModelFacts, setup: TrainingSetup, *, even: bool = False
) -> Peaks | None:
    """Return the peaks of one step that was followed, or by the formula for transformers.

    Ranks of which it is not known what they divide hold all of it, or with ``even`` a part.
    """
    followed = model.checkpointed if setup.checkpointing else model.whole
    if followed is None:
        peaks, known = transformer_peaks(model, setup), setup.tensor * setup.stages
    else:
        known = setup.tensor if model.divided is not None else 1
        peaks = followed.peaks(known, model.in_flight)
    if peaks is None or not even:
        return peaks
    of = setup.model_ranks / known
    return Peaks(peaks.first / of, peaks.more / of)


def transformer_peaks(model: ModelFacts, setup: TrainingSetup) -> Peaks | None:
    """Return the activations of a transformer of a known shape (arXiv:2205.05198, equation 2).

    A layer keeps s h (10 + 24 / t) bytes of a sample in 16 bits on each rank of a tensor group of
    t, with attention that keeps no scores; with checkpointing 2 s h and one layer in full. The
    first stage of a pipeline keeps as many micro batches as there are stages. The logits of the
    vocabulary, on the last, come with their gradients, in fp32 and in the compute type.
    """
    h, s, width = model.hidden_size, model.sequence_length, setup.width
    if not h or not s or not model.layers:
        return None
    layer = (10 + 24 / setup.tensor) * s * h * width / 2
    layers = -(-model.layers // setup.stages)
    kept, again = layers * layer, 0.0
    if setup.checkpointing:
        kept, again = float(layers * s * h * width), layer
    logits = s * (model.vocabulary or 0) * (2 * 4 + width)
    begun = min(setup.stages, setup.accumulation)
    sample = max(begun * kept, kept + logits) + again
    return Peaks(sample, sample)


def checkpoint_bytes(model: ModelFacts, setup: TrainingSetup) -> float:
    """Return the size of a checkpoint of all ranks together.

    Weights as they compute, once (at stage 3 only their fp32 copies, and frozen ones), master
    weights, and the optimizer's states.
    """
    master = 2 if setup.low_master else 4
    states = _state_bytes(model, setup)
    if setup.stage == 0 and setup.precision == FP32:
        master = 0
    weights = 0 if setup.stage == 3 else setup.width
    return (weights + master + states) * model.trainable + setup.width * model.frozen
