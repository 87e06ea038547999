"""torch.distributed where it is in use, without importing it where it is not."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from hpcrun.errors import HpcrunError

_groups: dict[str, Any] = {}
# A file server may stand still for long, and other ranks wait for the slowest.
_SAVE_TIMEOUT = timedelta(days=1)


def in_use() -> Any:
    """``torch.distributed`` with a process group; None without one."""
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed
    return None


def meet() -> None:
    """Wait for all ranks: none leaves while another still needs its part in a collective."""
    if distributed := in_use():
        distributed.barrier()


def of_the_host() -> Any:
    """A gloo group of all ranks for hpcrun alone, made at the first call; None without a group.

    Collective at the first call.
    """
    return _own("host")


def of_the_saves() -> Any:
    """As `of_the_host`, for what ranks agree on behind the training; no other thread uses it."""
    return _own("saves", timeout=_SAVE_TIMEOUT)


def of_the_copies() -> Any:
    """As `of_the_host`, for what ranks send each other of a save."""
    return _own("copies", timeout=_SAVE_TIMEOUT)


def _own(what: str, **options: Any) -> Any:
    if (distributed := in_use()) and what not in _groups:
        _groups[what] = distributed.new_group(backend="gloo", **options)
    return _groups.get(what) if distributed else None


def has_one_of_the_host() -> bool:
    """Whether `of_the_host` would answer without the other ranks."""
    return "host" in _groups


def missing() -> HpcrunError:
    """What is wrong where several ranks have no process group."""
    return HpcrunError(
        "metrics that are tensors are averaged over all ranks, which have no process group",
        hint="call session.initialize(…) or torch.distributed.init_process_group() before",
    )


def data_rank() -> int:
    """This rank's place in its data-parallel group, as DeepSpeed has it."""
    from deepspeed.utils import groups

    return int(groups._get_data_parallel_rank())
