"""Tensors that FSDP2 of torch divides between ranks (DTensors), beside those that are whole.

Each function takes both kinds; nothing here imports what a program has not.
"""

from __future__ import annotations

import math
from typing import Any


def is_divided(tensor: Any) -> bool:
    """Check for a DTensor."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def own_part(tensor: Any) -> Any:
    """Return what this rank holds of a tensor, detached; it shares the memory."""
    if not is_divided(tensor):
        return tensor.detach()
    import torch

    with torch.no_grad():
        return tensor.to_local()


def division(tensor: Any) -> Any:
    """Return the mesh and the placements of a tensor's parts; None for one that is whole."""
    return (tensor.device_mesh, tuple(tensor.placements)) if is_divided(tensor) else None


def whole(tensor: Any) -> Any:
    """Return all of a tensor; collective where it is divided."""
    return tensor.full_tensor() if is_divided(tensor) else tensor


def part_like(whole: Any, like: Any) -> Any:
    """Return this rank's part of a tensor that is whole here, divided as another is."""
    if not is_divided(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    divided = distribute_tensor(whole.detach(), mesh, placements, src_data_rank=None)
    return own_part(divided).clone()


def whole_of(part: Any, like: Any) -> Any:
    """Return the whole of which each rank has a part, as `like` is divided; collective."""
    if not is_divided(like):
        return part
    from torch.distributed.tensor import DTensor

    shape, stride = like.shape, like.stride()
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, shape=shape, stride=stride).full_tensor()


def replica_place(tensor: Any) -> str | None:
    """Return the name of this rank's part where other ranks hold the same, None where none does."""
    if not is_divided(tensor):
        return ""
    import torch

    mesh = tensor.device_mesh
    axes = zip(mesh.get_coordinate(), mesh.shape, tensor.placements, strict=True)
    parts = [(place, size) for place, size, placement in axes if not placement.is_replicate()]
    # Ranks outside of the mesh hold the same as those in it.
    if math.prod(size for _, size in parts) == torch.distributed.get_world_size():
        return None
    return " ".join(f"part {place} of {size}" for place, size in parts)


def is_replicated(tensor: Any, axis: str) -> bool:
    """Check that ranks along an axis hold the same of a DTensor, whose mesh may be without it."""
    names = tensor.device_mesh.mesh_dim_names or ()
    return axis not in names or tensor.placements[names.index(axis)].is_replicate()
