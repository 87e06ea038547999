"""Process groups of hpcrun's own, and access to torch.distributed without importing torch."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from hpcrun.errors import HpcrunError

_groups: dict[str, Any] = {}
# A file server may stand still for long, and other ranks wait for the slowest.
_SAVE_TIMEOUT = timedelta(days=1)


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


def host_group() -> Any:
    """Return a gloo group of all ranks for hpcrun alone; None without torch.distributed.

    Made at the first call, which is collective.
    """
    return _own("host")


def save_group() -> Any:
    """As `host_group`, for asynchronous saves, whose thread alone uses it."""
    return _own("saves", timeout=_SAVE_TIMEOUT)


def copy_group() -> Any:
    """As `host_group`, for transfers of checkpoint files between nodes."""
    return _own("copies", timeout=_SAVE_TIMEOUT)


def _own(name: str, **options: Any) -> Any:
    initialized = distributed()
    if initialized and name not in _groups:
        _groups[name] = initialized.new_group(backend="gloo", **options)
    return _groups.get(name) if initialized else None


def has_host_group() -> bool:
    """Check whether `host_group` would return without the other ranks."""
    return "host" in _groups


def missing_group_error() -> HpcrunError:
    """Return the error for several ranks without a process group."""
    return HpcrunError(
        "metrics that are tensors are averaged over all ranks, which have no process group",
        hint="call session.initialize(…) or torch.distributed.init_process_group() before",
    )


def data_rank() -> int:
    """Return this rank's place in its data-parallel group, as DeepSpeed has it."""
    from deepspeed.utils import groups

    return int(groups._get_data_parallel_rank())
