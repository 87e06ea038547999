"""Checkpoints made by hand: files of any bytes, and their manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state.layout import checkpoint_name
from hpcrun.state.manifest import Manifest

FILES = {"model.pt": b"weights" * 1000, "sub/rank-00000.pt": b"state"}


def make_checkpoint(
    checkpoints: Path, step: int, attempt: int = 1, contents: Mapping[str, bytes] = FILES
) -> Path:
    """Make a complete checkpoint; its directory."""
    directory = checkpoints / checkpoint_name(step, attempt)
    for name, data in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    Manifest(
        step=step,
        attempt=attempt,
        time=1e9 + step,
        world_size=1,
        zero_stage=1,
        train_batch_size=8,
        files={name: checkpoint_files.describe(directory / name) for name in contents},
    ).write(directory)
    return directory
