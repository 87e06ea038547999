"""Resume on another number of ranks, through DeepSpeed's universal checkpoint.

DeepSpeed 0.19.8 does its part in ``deepspeed/checkpoint/ds_to_universal.py`` and in
``load_hp_checkpoint_state_from_checkpoint_dir*`` of its ZeRO optimizers. A universal checkpoint
holds the optimizer's state only, of ZeRO 3 the hyperparameters of the first group alone, and with
ZeRO 1 and 2 nothing is loaded if a rank has no part of some group. The rest is done here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint import deepspeed_io, rank_state, trust
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state import files, manifest

# Method of a user's state that takes the states of all ranks that saved, in rank order.
HOOK = "load_state_dicts"
# The data loader of `session.restore(engine, loader=…)`. Equal states of two ranks do not give that
# of a third one, because each rank counts batches of its own.
_LOADER = "loader"
_MOMENTS = {"exp_avg", "exp_avg_sq"}
_DONE = "universal.json"
_POLL_SECONDS = 1.0
_TAIL_BYTES = 1 << 14
# Variables of a rank, which the conversion is not.
_RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "HPCRUN_LAUNCH")
# Settings that DeepSpeed's optimizers keep. With the first, names and positions do not match.
_UNCONVERTED = ("round_robin_gradients", "elastic_checkpoint")
_TIED = re.compile(r"tied_modules\.layer(\d+)\.(.+)")
_NUMBERED = re.compile(r"(\d+)\.(.+)")
_STAGE_3_PART = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_model_states\.pt")


def refusal(engine: Any) -> str | None:
    """Return why another number of ranks cannot resume from this engine's saves; None if it can."""
    if (what := deepspeed_io.unconverted(engine)) is not None:
        return what
    if (own := getattr(engine, "fixed_size", None)) is not None:
        return str(own)
    if engine.zero_optimization_stage() == 0:
        return None
    if deepspeed_io.offloads_to_nvme(engine):
        return "the optimizer is offloaded to NVMe"
    optimizer = engine.optimizer
    for name in _UNCONVERTED:
        if getattr(optimizer, name, False):
            return f"DeepSpeed does not convert what zero_optimization.{name} saves"
    if getattr(optimizer, "partial_offload", 1.0) not in (0.0, 1.0):
        return "DeepSpeed does not convert what a partial offload (offload_optimizer.ratio) saves"
    zero_config = getattr(getattr(engine, "_config", None), "zero_config", None)
    if getattr(zero_config, "pipeline_loading_checkpoint", False):
        return "DeepSpeed loads no other size with zero_optimization.pipeline_loading_checkpoint"
    inner = getattr(optimizer, "optimizer", None)
    kept = {key for state in getattr(inner, "state", {}).values() for key in state}
    if not kept >= _MOMENTS or kept - _MOMENTS - {"step"}:
        return (
            f"{type(inner).__name__} keeps {', '.join(sorted(kept)) or 'no state'}, and DeepSpeed "
            "converts the state of Adam"
        )
    return None


def own_states(states: Mapping[str, Any]) -> list[str]:
    """Return the names of states known to be restorable on the same number of ranks only."""
    return [key for key, each in states.items() if key == _LOADER and not hasattr(each, HOOK)]


def convert(directory: Path, target: Path, log: Path, ranks: Collectives) -> None:
    """Convert a checkpoint to the universal form at ``target``, unless it is there; collective.

    It stays until the next checkpoint is complete, so that a restart does not convert again. Ranks
    poll, so that no collective takes long. DeepSpeed's output goes to ``log``; if it fails, all
    ranks raise `CheckpointError` with the last line.
    """
    what = f"{directory} cannot be converted for another number of ranks"
    child: subprocess.Popen[bytes] | None = None

    def begin() -> None:
        nonlocal child
        if not shared_look.is_there(target / _DONE):
            child = _start(directory, target, log)
        elif foreign := trust.fault(target):
            raise CheckpointError(f"{what}: {target}: {foreign.message}")

    def is_done() -> bool:
        if child is None:
            return True
        code = child.poll()
        if code is None:
            return False
        if code:
            shutil.rmtree(target, ignore_errors=True)
            said = files.read_tail(log, _TAIL_BYTES).decode(errors="replace").strip().splitlines()
            raise CheckpointError(
                f"{what}: {said[-1] if said else f'exit code {code}'}",
                hint=f"what DeepSpeed said is in {log}",
            )
        _name_tied_layers_both_ways(target / "zero")
        manifest.sync_tree(target)
        files.write_json(target / _DONE, {"time": time.time()})
        return True

    try:
        ranks.from_rank_0(begin, what)
        while not ranks.from_rank_0(is_done, what):
            time.sleep(_POLL_SECONDS)
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()


def _name_tied_layers_both_ways(zero: Path) -> None:
    """Link parameters of tied layers under the name that they have outside a pipeline, and in one.

    `hpcrun.run.parallel.pipeline_stages` gives the names.
    """
    for folder in sorted(zero.iterdir()):
        if match := _TIED.fullmatch(folder.name):
            (zero / f"{match[1]}.{match[2]}").symlink_to(folder.name)
        elif match := _NUMBERED.fullmatch(folder.name):
            (zero / f"tied_modules.layer{match[1]}.{match[2]}").symlink_to(folder.name)


def states_of_all(
    directory: Path, saved_by: int, states: Mapping[str, Any], ranks: Collectives
) -> dict[str, Any]:
    """Find the user's states for each rank to restore; collective.

    A state that all ranks saved alike is used by all. One with `HOOK` gets the list of all ranks'.
    All raise `CheckpointError` if another state differs between ranks, or one cannot be read.
    """

    def find() -> dict[str, Any]:
        try:
            saved = [rank_state.read(directory / rank_state.name(rank)) for rank in range(saved_by)]
            found = {key: _of_all(key, states[key], saved) for key in states}
        except CheckpointError:
            raise
        except Exception as error:  # what states are compared with is up to them
            raise CheckpointError(f"{directory}: {rank_state.text(error)}") from error
        return {key: each for key, each in found.items() if each is not None}

    return ranks.from_rank_0(find, f"{directory} cannot be read") if states else {}


def _of_all(key: str, stateful: Any, saved: Sequence[Mapping[str, Any]]) -> Any:
    parts = [each["states"][key] for each in saved if key in each["states"]]
    if not parts:
        return None
    if hasattr(stateful, HOOK):
        return parts
    if key != _LOADER and all(_same(part, parts[0]) for part in parts[1:]):
        return parts[0]
    raise CheckpointError(
        f"the state {key!r} was saved by {len(saved)} ranks, each its own, and cannot be divided "
        "anew",
        hint=f"give it a method {HOOK}(states), which takes the states of all {len(saved)}; or ask "
        f"for {len(saved)} ranks again",
    )


def receivers(states: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap the states so that ``load_state_dict`` takes what `states_of_all` found."""
    return {
        key: SimpleNamespace(load_state_dict=getattr(stateful, HOOK, stateful.load_state_dict))
        for key, stateful in states.items()
    }


@contextmanager
def local_reads(engine: Any) -> Iterator[Callable[[], None]]:
    """As `deepspeed_io.local_reads`, for a universal checkpoint."""
    optimizer = engine.optimizer
    update: Callable[[], object] = getattr(optimizer, "update_lp_params", bool)
    methods: dict[str, Callable[..., Any]] = {}
    if update is not bool:
        methods = {
            "update_lp_params": lambda: None,
            "load_hp_checkpoint_state_from_checkpoint_dir": partial(_load_groups, optimizer),
        }
    with deepspeed_io.local_reads(engine) as rest:

        def update_and_rest() -> None:
            update()
            rest()

        engine._config.load_universal_checkpoint = True
        try:
            with deepspeed_io.replaced(optimizer, methods):
                yield update_and_rest
        finally:
            engine._config.load_universal_checkpoint = False


def load(
    engine: Any, directory: Path, universal: Path, rank: int, *, alike: bool
) -> dict[str, Any]:
    """Load both forms of a checkpoint, without collectives.

    ``alike`` says that the model was divided as it is now; otherwise there is nothing to load but
    what is converted.

    Returns the frozen parameters of ZeRO 3 for `scatter`: by name, whole on rank 0, None elsewhere.
    """
    import torch

    def read(path: Path) -> Any:
        return engine.checkpoint_engine.load(str(path), map_location="cpu")

    frozen: dict[str, Any] = {}
    if not alike or deepspeed_io.parallel(engine):
        if (what := deepspeed_io.unconverted(engine)) is not None:
            raise CheckpointError(f"{directory} cannot be divided anew: {what}")
    elif engine.zero_optimization_stage() < 3:
        # The optimizer's parameters are overwritten below.
        whole = read(Path(engine._get_ckpt_name(str(directory.parent), directory.name)))
        engine.load_module_state_dict(whole)
    else:
        parts = _stage_3_parts(directory)
        own = read(parts[rank % len(parts)])
        buffers = dict(engine.module.named_buffers(remove_duplicate=False))
        for name in own["buffer_names"]:
            buffers[name].data.copy_(own["module"][name])
        frozen = _frozen(own, [read(part) for part in parts] if rank == 0 else [])
    # Rank 0's node has just made it.
    shared_look.refresh(universal / "zero")
    engine.load_checkpoint(str(universal.parent), tag=universal.name)
    if engine.zero_optimization_stage() == 3:
        saved = torch.load(universal / "zero" / "optimizer_state.pt", weights_only=False)
        groups = saved["optimizer_state_dict"]["param_groups"]
        for group, was in zip(engine.optimizer.optimizer.param_groups, groups, strict=True):
            group.update({key: value for key, value in was.items() if key != "params"})
        for part in engine.optimizer.fp32_partitioned_groups_flat:
            _own_step(engine.optimizer.optimizer, part)
    return frozen


def scatter(engine: Any, frozen: Mapping[str, Any]) -> None:
    """Partition ZeRO 3's frozen parameters over the ranks; collective."""
    parameters = dict(engine.module.named_parameters()) if frozen else {}
    for name, value in frozen.items():
        deepspeed_io.put_partitioned(parameters[name], value)


def _load_groups(optimizer: Any, groups: str, universal: str) -> None:
    """Load this rank's part of each ZeRO 1 or 2 group; replaces a method of DeepSpeed's."""
    import torch
    from deepspeed.utils import map_to_flat_opt_states
    from deepspeed.utils.bwc import (
        bwc_tensor_model_parallel_rank,
        bwc_tensor_model_parallel_world_size,
    )

    zero = Path(universal, "zero")
    tensor_rank = bwc_tensor_model_parallel_rank(optimizer.mpu)
    tensor_size = bwc_tensor_model_parallel_world_size(optimizer.mpu)
    saved = torch.load(zero / "optimizer_state.pt", weights_only=False)
    optimizer._load_global_state(saved)
    inner = optimizer.optimizer
    for parameters, group, was in zip(
        getattr(optimizer, groups), inner.param_groups, saved["param_groups"], strict=True
    ):
        folders = [zero / optimizer.param_names[each] for each in parameters]
        for folder, each in zip(folders, parameters, strict=True):
            if each._hp_mapping is not None:
                each.load_hp_checkpoint_state(str(folder), tensor_rank, tensor_size)
        part = group["params"][0]
        map_to_flat_opt_states(part, parameters, inner.state, _MOMENTS)
        steps = folders[0] / "step.pt"
        group.update({key: value for key, value in was.items() if key != "params"})
        if shared_look.is_there(steps):
            inner.state[part]["step"] = torch.load(steps, weights_only=False)
            _own_step(inner, part)


def _own_step(inner: Any, part: Any) -> None:
    """Give a parameter its own step tensor, on the right device: torch adds to it in place."""
    import torch

    state = inner.state.get(part)
    if not state or not torch.is_tensor(state.get("step")):
        return
    on_device = any(group.get("fused") or group.get("capturable") for group in inner.param_groups)
    state["step"] = state["step"].clone().to(part.device if on_device else "cpu")


def _frozen(own: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import torch

    shapes = own.get("frozen_param_shapes") or {}
    if not parts:
        return dict.fromkeys(shapes)
    return {
        name: torch.cat([part["frozen_param_fragments"][name].flatten() for part in parts])[
            : shape.numel()
        ].view(shape)
        for name, shape in shapes.items()
    }


def _stage_3_parts(directory: Path) -> list[Path]:
    found = {
        int(match[1]): path
        for path in directory.iterdir()
        if (match := _STAGE_3_PART.fullmatch(path.name))
    }
    return [found[rank] for rank in sorted(found)]


def _start(directory: Path, target: Path, log: Path) -> subprocess.Popen[bytes]:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    workers = str(max(1, min(8, len(os.sched_getaffinity(0)))))
    argv = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    argv += ["--num_extract_workers", workers, "--num_merge_workers", workers]
    argv += ["--input_folder", str(directory), "--output_folder", str(target)]
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_NAMES}
    environment.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
    with log.open("ab") as output:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )


def _same(one: Any, other: Any) -> bool:
    """Compare two states, including tensors and arrays in them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "shape"):
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other)
