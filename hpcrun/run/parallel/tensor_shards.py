"""Tensors that FSDP2 of torch divides between ranks (DTensors), beside those that are whole.

Each function takes both kinds; nothing here imports what a program has not.
"""

from __future__ import annotations

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
    if not any(placement.is_replicate() for placement in tensor.placements):
        return None
    mesh = tensor.device_mesh
    parts = [
        f"part {place} of {size}"
        for place, size, placement in zip(
            mesh.get_coordinate(), mesh.shape, tensor.placements, strict=True
        )
        if not placement.is_replicate()
    ]
    return " ".join(parts)
