"""Patches of DeepSpeed's shard I/O, so that one rank's error reaches all.

Unpatched, a rank that cannot write or read raises, while the others wait for it in a barrier or an
all-gather.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# As `DeepSpeedEngine._get_ckpt_name` names them: data parallel and model parallel rank.
MODEL_STATES = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


class UnreadableFile(Exception):
    """A file of a checkpoint could not be read."""


@contextmanager
def redirected_writes(
    engine: Any, write: Callable[[Any, Path], None], errors: list[str]
) -> Iterator[list[Path]]:
    """Replace DeepSpeed's own writer in this rank by ``write(state, path)``.

    Errors are collected instead of raised: the other ranks are on their way to DeepSpeed's barrier
    and would wait there for ever. Yields the files that another writer than torch's, named in the
    user's DeepSpeed configuration, has written by itself.
    """
    writer = engine.checkpoint_engine
    original = writer.save
    others: list[Path] = []

    def save(state_dict: Any, path: str) -> Any:
        try:
            if writes_with_torch(engine):
                return write(state_dict, Path(path))
            others.append(Path(path))
            return original(state_dict, path)
        except Exception as error:  # what a state cannot be pickled with is up to the state
            errors.append(f"{type(error).__name__}: {error}")
            return None

    copy_scripts = getattr(engine, "_copy_recovery_script", None)

    def copy_if_possible(path: str) -> None:
        # DeepSpeed's own scripts, which rank 0 copies beside the checkpoints.
        with suppress(OSError):
            copy_scripts(path)  # type: ignore[misc]

    scripts = {} if copy_scripts is None else {"_copy_recovery_script": copy_if_possible}
    with replaced(writer, {"save": save}), replaced(engine, scripts):
        yield others


@contextmanager
def replaced(owner: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Give an object methods in place of its class's, until the end of a block."""
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name in methods:
            delattr(owner, name)


def mp_ranks(names: Iterable[str]) -> list[str]:
    """Return the numbers of model-parallel ranks in the names of DeepSpeed's files of the model."""
    return sorted({match[2] for name in names if (match := MODEL_STATES.fullmatch(name))})


@contextmanager
def local_reads(engine: Any, mp_ranks: Sequence[str] | None = None) -> Iterator[Callable[[], None]]:
    """Make ``engine.load_checkpoint`` non-collective, raising `UnreadableFile` for a bad file.

    With the `mp_ranks` that the manifest names, DeepSpeed is told its files' names, which it would
    look for: each rank in a listing of all, and once for each other rank's.

    Yields a function for the collective rest of the load (ZeRO 3 gathers its small parameters), to
    be called once all ranks have read their files.
    """
    reader = engine.checkpoint_engine
    original = reader.load
    has_rest = getattr(engine, "_optimizer_has_ckpt_event_epilogue", lambda: False)

    def load(path: str, map_location: Any = None) -> Any:
        try:
            return original(path, map_location=map_location)
        except Exception as error:
            raise UnreadableFile(f"{Path(path).name} cannot be read: {error}") from error

    def rest() -> None:
        if has_rest():
            engine.optimizer.checkpoint_event_epilogue()

    def model_names(directory: str, tag: str) -> list[str]:
        found = mp_ranks or ()
        # In DeepSpeed's order: 100 before 10.
        return sorted(engine._get_ckpt_name(directory, tag, mp_placeholder=each) for each in found)

    def shard_names(load_dir: str, tag: str, bf16_mode: bool) -> list[str | None]:
        from deepspeed import comm

        mp_rank, ranks = engine.checkpoint_mp_rank, engine.loaded_checkpoint_dp_world_size
        if engine.zero_elastic_checkpoint():
            found: list[str | None] = engine._get_mp_rank_zero_checkpoint_names(
                load_dir, tag, mp_rank, ranks, bf16_mode
            )
            return found
        # DeepSpeed reads no other's: None is an empty one.
        own = comm.get_rank(group=engine.optimizer.dp_process_group)
        name = engine._get_rank_zero_ckpt_name(load_dir, tag, mp_rank, own, bf16_mode)
        return [name if rank == own else None for rank in range(ranks)]

    methods: dict[str, Callable[..., Any]] = {"_optimizer_has_ckpt_event_epilogue": lambda: False}
    if mp_ranks and not getattr(engine, "load_universal_checkpoint", bool)():
        methods |= {
            "_get_all_ckpt_names": model_names,
            "_get_all_zero_checkpoint_names": shard_names,
        }
    with replaced(reader, {"load": load}), replaced(engine, methods):
        yield rest


def put_partitioned(parameter: Any, value: Any) -> None:
    """Give a parameter that ZeRO 3 has partitioned rank 0's value, None elsewhere; collective."""
    import deepspeed
    import torch

    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
        if value is not None:
            parameter.data.copy_(value.contiguous())


# Where `note_parallel` leaves the axes along which an engine's model is divided.
_PARALLEL = "hpcrun_parallel"


def note_parallel(engine: Any, divided: Mapping[str, int]) -> None:
    """Note the axes along which an engine's model is divided -> ranks."""
    setattr(engine, _PARALLEL, dict(divided))


def parallel(engine: Any) -> dict[str, int]:
    """Return the axes along which an engine's model is divided -> ranks."""
    if (noted := getattr(engine, _PARALLEL, None)) is not None:
        return dict(noted)
    if getattr(engine, "pipeline_parallelism", False):
        stages = int(engine.num_stages)
        return {"pipeline": stages} if stages > 1 else {}
    tensor = getattr(engine, "autotp_size", int)() or 1
    return {"tensor": int(tensor)} if tensor > 1 else {}


def model_division(engine: Any) -> str | None:
    """Return how the model itself is divided, so that ranks read each other's files, or None."""
    if saves_whole(engine):
        return None
    if getattr(engine, "has_moe_layers", False):
        return "the model has mixture-of-experts layers"
    if getattr(engine, "pipeline_parallelism", False):
        return "the model is a pipeline"
    if parallel(engine) or int(getattr(engine, "mp_world_size", 1)) > 1:
        return "the model is divided between ranks"
    return None


def saves_whole(engine: Any) -> bool:
    """Check for an engine of `session.fully_shard`: its saves fit any layout."""
    return getattr(engine, "made_by", None) == "session.fully_shard"


def unconverted(engine: Any) -> str | None:
    """Return why DeepSpeed converts no save of this engine to another layout, or None."""
    divided = parallel(engine)
    if not divided or saves_whole(engine) or getattr(engine, "has_moe_layers", False):
        return model_division(engine)
    if "sequence" in divided:
        return "sequences are divided (parallel.sequence)"
    if engine.zero_optimization_stage() == 0:
        return "the model is divided, and ZeRO 0 saves nothing that DeepSpeed converts"
    is_frozen = any(not each.requires_grad for each in engine.module.parameters())
    if is_frozen or any(True for _ in saved_buffers(engine.module)):
        return "the model is divided and has buffers or frozen parameters, which are not converted"
    return None


def saved_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers that are in the module's state."""
    for prefix, owner in module.named_modules():
        for name, buffer in owner.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in owner._non_persistent_buffers_set:
                yield name, buffer


def writes_with_torch(engine: Any) -> bool:
    """Check whether the engine writes its checkpoints with ``torch.save``."""
    return type(engine.checkpoint_engine).__name__ == "TorchCheckpointEngine"


def offloads_to_nvme(engine: Any) -> bool:
    """Check whether the optimizer is offloaded to NVMe."""
    return bool(getattr(engine, "zero_nvme_offload_optimizer", bool)())


def nvme_files(engine: Any, directory: Path, rank: int) -> list[Path]:
    """Return the files of this rank's NVMe offload that DeepSpeed copied into the checkpoint."""
    if not offloads_to_nvme(engine):
        return []
    own = [
        each
        for each in (directory / "offloaded_tensors").glob("rank*")
        if each.name.removeprefix("rank").lstrip("0") == str(rank or "")
    ]
    return sorted(path for each in own for path in each.rglob("*") if path.is_file())


def with_scaler(engine: Any, states: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the loss scale of fp16 through torch_autocast, which DeepSpeed 0.19.8 does not save.

    The engine has the scaler without ZeRO, and the optimizer with it.
    """
    found = dict(states)
    for owner, name in (
        (engine, "torch_autocast_z0_gradscaler"),
        (getattr(engine, "optimizer", None), "torch_autocast_gradscaler"),
    ):
        if (scaler := getattr(owner, name, None)) is not None:
            found[name] = scaler
    return found
