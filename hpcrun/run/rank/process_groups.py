"""hpcrun's own process groups, and torch.distributed where it is loaded."""

from __future__ import annotations

import sys
from typing import Any

# For metrics and stop votes; for the thread of asynchronous saves; for copies between nodes.
HOST, SAVES, COPIES = "host", "saves", "copies"
# A file server may stand still for long, and other ranks wait for the slowest.
_LONG = (SAVES, COPIES)
_groups: dict[str, Any] = {}

# Seconds that a process which leaves gives gloo's threads to end.
GLOO_SETTLES = 0.1


def distributed() -> Any:
    """Return ``torch.distributed`` if a process group is initialized, else None."""
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed
    return None


def barrier() -> None:
    """Barrier before teardown, so that no rank exits while another is still in a collective."""
    if initialized := distributed():
        initialized.barrier()


def own_group(name: str) -> Any:
    """Return a gloo group of all ranks for hpcrun alone; None without torch.distributed.

    The first call with a name makes the group, and is collective.
    """
    initialized = distributed()
    if initialized and name not in _groups and name == HOST:
        _groups[name] = _on_the_same_device(initialized)
    if initialized and _groups.get(name) is None:
        from datetime import timedelta

        timeout = {"timeout": timedelta(days=1)} if name in _LONG else {}
        _groups[name] = initialized.new_group(backend="gloo", **timeout)
    return _groups.get(name) if initialized else None


def _on_the_same_device(initialized: Any) -> Any:
    """Return a gloo group that shares the thread of the default one; None where that has none.

    Each device has a thread that wakes up a hundred times a second, which takes about 0.3 % of a
    processor from the training. `torch.distributed.new_group` takes no device.
    """
    import torch

    try:
        c10d = initialized.distributed_c10d
        default = c10d._get_default_group()._get_backend(torch.device("cpu"))
        devices = default.options._devices
        options = type(default)._Options()
        options._devices, options._timeout = devices, default.options._timeout
        store = initialized.PrefixStore("hpcrun", c10d._get_default_store())
        rank, size = initialized.get_rank(), initialized.get_world_size()
        return type(default)(store, rank, size, options)
    except (AttributeError, RuntimeError, TypeError):
        return None


def has_group(name: str) -> bool:
    """Check whether `own_group` would return without the other ranks."""
    return name in _groups


def data_rank() -> int:
    """Return this rank's place in its data-parallel group, as DeepSpeed has it."""
    from deepspeed.utils import groups

    return int(groups._get_data_parallel_rank())


def begin(world_size: int, device: Any, *, alone: bool = False) -> None:
    """Initialise torch.distributed unless that has been done; for one rank if ``alone``."""
    if distributed() or (world_size == 1 and not alone):
        return
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)
    options: dict[str, Any] = {}
    if world_size == 1:
        # Nobody else is to be met.
        options = {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", **options)
