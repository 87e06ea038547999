"""A run on fewer nodes with the same global batch (``recovery.shrink``)."""

from __future__ import annotations

from dataclasses import replace

from hpcrun.policy import batch
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.parallel_block import model_ranks


def to_fit(run: RunPlan, paths: RunPaths, most: int) -> RunPlan | None:
    """Return the run on the largest number of nodes, at most ``most``, that its batch divides into.

    None if the spec does not ask for it, no smaller number fits, or a function's newest checkpoint
    cannot be restored by another number of ranks.
    """
    if not run.recovery.shrink or run.role_plans:
        return None
    saved = manifest.complete(paths.checkpoints)
    if saved and (saved[0][1].fixed_size is not None or saved[0][1].own_states):
        return None
    if not saved and run.entry.kind == "function":
        # A requeue loses nothing.
        return None
    deepspeed = run.deepspeed
    train, micro, accumulation = (deepspeed.get(key) for key in batch.KEYS)
    if not isinstance(train, int) or batch.AUTO in (micro, accumulation):
        return None
    copy = model_ranks(run.spec.get("parallel"))
    # Also where one process of a node has all its GPUs, and starts the others.
    per_node = run.resources.gpus_per_node or run.ranks_per_node
    try:
        whole = batch.solve(train, micro, accumulation, run.nodes * per_node // copy)
    except batch.Unsolvable:
        # Several ranks share a copy of the model.
        return None
    for nodes in range(most, 0, -1):
        ranks, rest = divmod(nodes * per_node, copy)
        divided = None if rest or not ranks else whole.among(ranks)
        if divided is not None:
            resources = {**run.spec["resources"], "nodes": nodes}
            deepspeed = {**deepspeed, **divided.as_keys()}
            return replace(run, spec={**run.spec, "resources": resources, "deepspeed": deepspeed})
    return None
