"""A run on fewer nodes than it asked for, with the global batch that it has (`recovery.shrink`)."""

from __future__ import annotations

from dataclasses import replace

from hpcrun.policy import batch
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import RunPlan


def to_fit(run: RunPlan, paths: RunPaths, most: int) -> RunPlan | None:
    """The run on the largest number of nodes that it can be divided among.

    Parameters
    ----------
    most
        Nodes that can be used, fewer than it has.

    Returns
    -------
    RunPlan or None
        None where ``recovery.shrink`` does not ask for it, no smaller number does, or a function's
        newest checkpoint does not say that another number of ranks can go on from it.
    """
    if not run.recovery.shrink:
        return None
    saved = manifest.complete(paths.checkpoints)
    if saved and (saved[0][1].fixed_size is not None or saved[0][1].own_states):
        return None
    if not saved and run.entry.kind == "function":
        # It loses nothing by a requeue.
        return None
    deepspeed = run.deepspeed
    given = [each for key in batch.KEYS if isinstance(each := deepspeed.get(key), int)]
    if len(given) != len(batch.KEYS):
        return None
    whole = batch.Triple(*given)
    if whole.train != whole.micro * whole.accumulation * run.world_size:
        # Ranks share a copy of the model.
        return None
    for nodes in range(most, 0, -1):
        divided = whole.among(nodes * run.ranks_per_node)
        if divided is not None:
            resources = {**run.spec["resources"], "nodes": nodes}
            deepspeed = {**deepspeed, **divided.as_keys()}
            return replace(run, spec={**run.spec, "resources": resources, "deepspeed": deepspeed})
    return None
