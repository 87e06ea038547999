"""A rank's own file in a checkpoint: generators and the user's states."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.run.checkpoint.deepspeed_io import UnreadableFile
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import rng


def name(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def check(states: Mapping[str, Any]) -> None:
    """Raise TypeError for a state that cannot be saved."""
    for key, stateful in states.items():
        if not (hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict")):
            raise TypeError(
                f"restore({key}=…): {type(stateful).__name__} has no state_dict() and "
                "load_state_dict(), so its position cannot be saved"
            )


def collect(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of this rank's file, raising whatever a state raises."""
    saved = {name: stateful.state_dict() for name, stateful in states.items()}
    return {"rng": rng.state(), "states": saved}


def read(path: Path) -> dict[str, Any]:
    """Read a rank's file, or raise `UnreadableFile`."""
    import torch

    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise UnreadableFile(f"{path.name} cannot be read: {error}") from error
    return saved


def apply(saved: Mapping[str, Any], states: Mapping[str, Any], *, tells: bool) -> str | None:
    """Restore generators and states; return an error as `text` does, or None.

    ``tells``: this rank reports states that were not saved.
    """
    try:
        for key, stateful in states.items():
            if key in saved["states"]:
                stateful.load_state_dict(saved["states"][key])
            elif tells:
                tell(f"no state of {key!r} was saved; it begins anew")
        # Last, because loading a state may take random numbers.
        if saved["rng"] is not None:
            rng.restore(saved["rng"])
    except Exception as error:
        return text(error)
    return None


def text(error: Exception) -> str:
    """Print the error's traceback to this rank's log and return the error in one line."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
