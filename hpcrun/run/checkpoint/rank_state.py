"""What a checkpoint holds of a rank beside DeepSpeed's shards: generators and the user's states."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.run.checkpoint.deepspeed_io import Unreadable
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import rng


def name(rank: int) -> str:
    """The file's name."""
    return f"rank-{rank:05d}.pt"


def collect(states: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank's file holds; whatever a state raises is raised."""
    saved = {name: stateful.state_dict() for name, stateful in states.items()}
    return {"rng": rng.state(), "states": saved}


def read(path: Path) -> dict[str, Any]:
    """Read this rank's file.

    Raises
    ------
    Unreadable
        It cannot be read.
    """
    import torch

    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise Unreadable(f"{path.name} cannot be read: {error}") from error
    return saved


def apply(saved: Mapping[str, Any], states: Mapping[str, Any], *, tells: bool) -> str | None:
    """Go on from what was read; what went wrong, as `text` has it.

    Parameters
    ----------
    tells
        This rank says which states were not saved.
    """
    try:
        for key, stateful in states.items():
            if key in saved["states"]:
                stateful.load_state_dict(saved["states"][key])
            elif tells:
                tell(f"no state of {key!r} was saved; it begins anew")
        # Last: to load a state may take random numbers.
        if saved["rng"] is not None:
            rng.restore(saved["rng"])
    except Exception as error:
        return text(error)
    return None


def text(error: Exception) -> str:
    """The error in a line; its traceback goes to this rank's log."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
