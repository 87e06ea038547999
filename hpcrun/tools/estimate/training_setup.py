"""How a run trains, as far as memory is concerned: read from its DeepSpeed configuration.

Defaults are those of DeepSpeed 0.19.8; a test compares them with the installed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpcrun.policy.batch import ACCUMULATION, AUTO, MICRO, TRAIN
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.parallel_block import divided_axes

FP32, BF16, FP16 = "fp32", "bf16", "fp16"
BYTES = {FP32: 4, BF16: 2, FP16: 2}
NONE, CPU, NVME = "none", "cpu", "nvme"
# Key of zero_optimization in elements -> the field of `TrainingSetup` that has it.
BUCKETS = {
    "reduce_bucket_size": "reduce_bucket",
    "sub_group_size": "sub_group",
    "stage3_prefetch_bucket_size": "prefetch_bucket",
    "stage3_param_persistence_threshold": "persistence",
    "stage3_max_live_parameters": "max_live",
    "stage3_max_reuse_distance": "max_reuse",
}
# Optimizer -> fp32 numbers that it keeps of each parameter, beside the parameter itself.
STATES = {
    "sgd": 0,
    "adagrad": 1,
    "rmsprop": 1,
    "lion": 1,
    "muon": 2,
    **dict.fromkeys(("adam", "adamw", "lamb", "nadam", "radam", "adamax", "adadelta"), 2),
    # Of a matrix it keeps a row and a column.
    "adafactor": 0,
}
_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "torch.float32"), FP32),
    **dict.fromkeys(("bf16", "bfloat16"), BF16),
    **dict.fromkeys(("fp16", "float16"), FP16),
}


@dataclass(frozen=True)
class TrainingSetup:
    """The settings that decide what a rank holds."""

    stage: int
    ranks: int
    """Data-parallel ranks: they share what ZeRO divides."""
    model_ranks: int = 1
    """Ranks that hold one copy of the model together."""
    tensor: int = 1
    """Of these, ranks of a tensor group."""
    stages: int = 1
    """Stages of the pipeline; what is left of ``model_ranks`` divides the model in another way."""
    precision: str = FP32
    accumulation_dtype: str = FP32
    """Data type in which gradients are summed up."""
    low_master: bool = False
    """The master weights are kept in 16 bits, too (``bf16_master_weights_and_grads``)."""
    low_states: bool = False
    """So are the optimizer's states (``bf16_optimizer_states``)."""
    optimizer: str = "adamw"
    numbers: float = 2
    """Numbers that the optimizer keeps of each parameter."""
    is_torch: bool = False
    """torch's own optimizer, which needs room for a copy as it steps on a GPU."""
    offload_optimizer: str = NONE
    offload_param: str = NONE
    micro: int = 1
    accumulation: int = 1
    overlap: bool = False
    checkpointing: bool = False
    """Activations of blocks are computed again in backward."""
    reduce_bucket: int = 500_000_000
    sub_group: int = 1_000_000_000
    prefetch_bucket: int = 50_000_000
    persistence: int = 100_000
    max_live: int = 1_000_000_000
    max_reuse: int = 1_000_000_000
    notes: tuple[str, ...] = ()
    """What had to be assumed."""

    @property
    def width(self) -> int:
        """Bytes of a weight as it computes."""
        return BYTES[self.precision]

    def to_data(self) -> dict[str, Any]:
        """Return plain data without the notes."""
        return {name: value for name, value in asdict(self).items() if name != "notes"}

    def __str__(self) -> str:
        parts = [f"ZeRO {self.stage}"]
        if self.offload_optimizer != NONE:
            parts.append(f"optimizer on {self.offload_optimizer}")
        if self.offload_param != NONE:
            parts.append(f"parameters on {self.offload_param}")
        if self.checkpointing:
            parts.append("activation checkpointing")
        return ", ".join(parts)


def of_run(run: RunPlan) -> TrainingSetup:
    """Return the setup of a run, as its plan has it."""
    per_node = run.resources.gpus_per_node or run.ranks_per_node
    return read(
        _fill(run.deepspeed, run.config),
        run.nodes * per_node,
        **_layout(run),
        checkpointing=_checkpointing(run),
    )


def _layout(run: RunPlan) -> dict[str, int]:
    """Return the number of ranks that hold a model together, and the axes by which they do."""
    # Ranks of a sequence hold whole weights, and ZeRO divides its states between them.
    axes = divided_axes(run.spec.get("parallel"))
    tensor, stages = axes.get("tensor", 1), axes.get("pipeline", 1)
    if not axes:
        tensor = whole(block(run.deepspeed, "tensor_parallel").get("autotp_size"))
        if (given := run.spec.get("model_parallel_size")) is not None:
            return {"model_ranks": whole(given), "tensor": tensor if given == tensor else 1}
    return {"model_ranks": tensor * stages, "tensor": tensor, "stages": stages}


def whole(value: Any) -> int:
    """Return a positive whole number of a configuration; 1 for all else."""
    return value if type(value) is int and value > 0 else 1


def _checkpointing(run: RunPlan) -> bool:
    told = block(run.spec, "estimate").get("activation_checkpointing")
    if told is not None:
        return bool(told)
    if "pipeline" in divided_axes(run.spec.get("parallel")):
        return bool(block(run.deepspeed, "pipeline").get("activation_checkpoint_interval"))
    return run.config.get("gradient_checkpointing") is True


def _fill(deepspeed: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what a Trainer takes from its own flags, where the configuration says auto."""
    found = dict(deepspeed)
    for name in ("bf16", "fp16"):
        own = block(found, name)
        if own.get("enabled") == "auto":
            found[name] = {**own, "enabled": config.get(name) is True}
    flags = {
        MICRO: "per_device_train_batch_size",
        ACCUMULATION: "gradient_accumulation_steps",
    }
    for key, flag in flags.items():
        value = config.get(flag)
        if found.get(key, AUTO) == AUTO and isinstance(value, int) and value > 0:
            found[key] = value
    return found


def read(
    config: Mapping[str, Any],
    ranks: int,
    model_ranks: int = 1,
    *,
    tensor: int = 1,
    stages: int = 1,
    checkpointing: bool = False,
) -> TrainingSetup:
    """Return the setup of a DeepSpeed configuration on so many ranks, all of them counted.

    What a script's Trainer fills in (``auto``) is taken as the default, and said in the notes.
    """
    notes: list[str] = []
    zero = block(config, "zero_optimization")
    precision = FP32
    for name in (FP16, BF16):
        enabled = block(config, name).get("enabled", name in config)
        if enabled == "auto":
            notes.append(f"{name}.enabled is auto: taken as {'true' if name == BF16 else 'false'}")
            enabled = name == BF16
        if enabled is True:
            precision = name
    given = block(config, "data_types").get("grad_accum_dtype")
    accumulated = _DTYPES.get(str(given), precision) if given is not None else precision
    optimizer = _optimizer(config, notes)
    low = block(config, precision) if precision != FP32 else {}
    stage = _whole(zero, "stage", 0, notes)
    overlap = zero.get("overlap_comm")
    buckets: dict[str, Any] = {
        field: _whole(zero, key, getattr(TrainingSetup, field), notes)
        for key, field in BUCKETS.items()
    }
    return TrainingSetup(
        stage=min(max(stage, 0), 3),
        ranks=max(1, ranks // max(1, model_ranks)),
        model_ranks=max(1, model_ranks),
        tensor=tensor,
        stages=stages,
        precision=precision,
        accumulation_dtype=accumulated,
        low_master=low.get(f"{precision}_master_weights_and_grads") is True,
        low_states=low.get("bf16_optimizer_states") is True,
        **optimizer,
        offload_optimizer=_device(zero, "offload_optimizer", stage >= 1),
        offload_param=_device(zero, "offload_param", stage == 3),
        micro=_whole(config, MICRO, 1, notes),
        accumulation=_whole(config, ACCUMULATION, 1, notes),
        overlap=stage == 3 if overlap is None else overlap is True,
        checkpointing=checkpointing,
        **buckets,
        notes=tuple(dict.fromkeys(notes)),
    )


def global_batch(config: Mapping[str, Any], setup: TrainingSetup) -> int:
    """Return the samples of one optimizer step over all ranks."""
    given: Any = config.get(TRAIN)
    return int(given) if _is_whole(given) else setup.micro * setup.accumulation * setup.ranks


def _optimizer(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    given = block(config, "optimizer")
    name = given.get("type")
    if not isinstance(name, str):
        notes.append("no optimizer in the DeepSpeed configuration: taken as AdamW")
        return {"optimizer": "adamw", "numbers": 2.0}
    is_library = "." in name
    kind = name.lower().rpartition(".")[2]
    options = block(given, "params")
    if kind not in STATES:
        notes.append(f"the states of the optimizer {name} are not known: taken as those of AdamW")
    numbers = float(STATES.get(kind, 2))
    if kind == "sgd" and options.get("momentum"):
        numbers = 1.0
    if kind == "rmsprop":
        numbers += bool(options.get("momentum")) + bool(options.get("centered"))
    if kind in ("adam", "adamw") and options.get("amsgrad"):
        numbers = 3.0
    # DeepSpeed has its own Adam, Lamb, Lion; everything else is torch's.
    own = kind in ("adam", "adamw", "lamb", "lion", "muon") and not options.get("torch_adam")
    own = own and not is_library
    return {"optimizer": kind, "numbers": numbers, "is_torch": not own}


def block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a block of a configuration; empty if it has none, or something else there."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _device(zero: Mapping[str, Any], name: str, applies: bool) -> str:
    device = block(zero, name).get("device", NONE)
    return device if applies and device in (CPU, NVME) else NONE


def _whole(config: Mapping[str, Any], name: str, default: int, notes: list[str]) -> int:
    value = config.get(name, default)
    if isinstance(value, float) and value.is_integer():  # as 5e8
        value = int(value)
    if _is_whole(value):
        return int(value)
    notes.append(f"{name} is {value}: taken as {default:,}")
    return default


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
