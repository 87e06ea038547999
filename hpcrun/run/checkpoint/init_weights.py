"""Initialization with another run's weights, of any size and ZeRO stage.

Rank 0 reads them (`hpcrun.run.weights.saved_weights`) and broadcasts each tensor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import CheckpointError, UsageError
from hpcrun.run.checkpoint import deepspeed_io, rank_state
from hpcrun.run.checkpoint.restore import PAUSES, shares, verify
from hpcrun.run.parallel import tensor_shards
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.weights import saved_weights
from hpcrun.state import files, manifest
from hpcrun.state.init_from import KEY, Origin
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Manifest
from hpcrun.text import listed

_SHOWN = 5


def initialize(engine: Any, text: str, run: RunPaths, ranks: Collectives) -> tuple[Path, int]:
    """Load the weights of the checkpoint ``RUN[@step]`` into the engine's model; collective.

    The choice is kept in `origin.json` of ``run``, the run that begins, so that a later attempt
    makes the same. Returns the checkpoint's directory and step. Raises CheckpointError if there is
    no such checkpoint, it is damaged, or it is of another model.
    """
    whole: Manifest | None = None

    def choose() -> list[tuple[Path, Manifest]]:
        nonlocal whole
        directory, whole = _choose(text, run)
        return [(directory, part) for part in shares(whole, ranks.world_size)]

    directory, entry = ranks.scatter_from_rank_0(choose, KEY)
    what = f"{KEY}: {directory}"
    for pause in (*PAUSES, None):
        fault = verify(directory, entry, ranks)
        if fault is None or fault.lasting or pause is None:
            break
        # A file server that restarts gives errors of a few seconds.
        time.sleep(pause)
    if fault is not None:
        hint = "name an earlier step of that run, as RUN@step" if fault.lasting else None
        raise CheckpointError(f"{what}: {fault.message}", hint=hint)
    refused = deepspeed_io.model_division(engine)
    if engine.zero_optimization_stage() == 3 and deepspeed_io.offloads_to_nvme(engine):
        refused = refused or "the optimizer's copy of them is offloaded to NVMe"
    if refused is not None:
        raise CheckpointError(f"{what}: weights are not taken over: {refused}")
    # By their first names; of buffers those that are saved.
    kept = engine.module.state_dict(keep_vars=True)
    buffers = [named for named in engine.module.named_buffers() if named[0] in kept]
    targets = dict([*engine.module.named_parameters(), *buffers])
    weights: Mapping[str, Any] = {}
    refusal = None
    if whole is not None:
        try:
            # Without the optimizer's copies, which are larger: this model gets new ones.
            weights = saved_weights.collect(directory, whole.files, masters=False).tensors
            _compare(weights, targets, engine.module, what)
        except CheckpointError as error:
            refusal = error.message
        except Exception as error:  # what a file holds is up to who wrote it
            refusal = f"{what} cannot be read: {rank_state.text(error)}"
    refusal = ranks.from_rank_0(lambda: refusal, what)
    if refusal is not None:
        raise CheckpointError(refusal)
    for name, target in targets.items():
        _put(target, weights.get(name), ranks)
    refresh = getattr(getattr(engine, "optimizer", None), "refresh_fp32_params", None)
    if refresh is not None:
        refresh()
    return directory, entry.step


def _choose(text: str, run: RunPaths) -> tuple[Path, Manifest]:
    """Return the checkpoint of an earlier attempt while it exists, else the one of the spec."""
    try:
        earlier = Path(files.read_json(run.origin, files.MOST_LINE)["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        earlier = None
    if earlier is not None and (entry := manifest.read(earlier)) is not None:
        return earlier, entry
    try:
        directory, entry = Origin.parse(text).find(run.experiment.root)
    except UsageError as error:
        raise CheckpointError(error.message, hint=error.hint) from None
    files.write_json(
        run.origin,
        {"from": text, "checkpoint": str(directory), "step": entry.step, "time": time.time()},
    )
    return directory, entry


def _compare(
    weights: Mapping[str, Any], targets: Mapping[str, Any], module: Any, what: str
) -> None:
    """Raise `CheckpointError` if the weights are of another model."""
    aliases = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    aliases |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    # ZeRO 3 keeps the shape of a whole tensor that it has partitioned.
    shapes = {name: tuple(getattr(each, "ds_shape", each.shape)) for name, each in targets.items()}
    differences = {
        "missing there": [name for name in targets if name not in weights],
        "unknown here": [name for name in weights if name not in targets and name not in aliases],
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} there, {shape} here"
            for name, shape in shapes.items()
            if name in weights and tuple(weights[name].shape) != shape
        ],
    }
    wrong = [
        f"{words}: {listed(names, _SHOWN, rest=', …')}"
        for words, names in differences.items()
        if names
    ]
    if wrong:
        raise CheckpointError(f"{what} is of another model: {'; '.join(wrong)}")


def _put(target: Any, value: Any, ranks: Collectives) -> None:
    import torch

    if hasattr(target, "ds_id"):
        return deepspeed_io.put_partitioned(target, value)
    whole, divided = target.data, tensor_shards.is_divided(target)
    if divided:
        whole = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    if value is not None:
        whole.copy_(value.contiguous())
    if ranks.world_size > 1:
        torch.distributed.broadcast(whole, src=0)
    if divided:
        tensor_shards.own_part(target).copy_(tensor_shards.part_like(whole, target))
