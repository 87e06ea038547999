"""A parent's checkpoint in the directory of a trial that goes on from it.

It comes there together with the trial's values, by hard links where the file system has them, so
that the parent may remove its own at any time. Its manifest names no attempt of the trial
(`manifest.INHERITED`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.run.checkpoint import trust
from hpcrun.state import chosen_point, files, manifest
from hpcrun.state.layout import RunPaths, checkpoint_name
from hpcrun.state.manifest import Manifest


class NotThere(HpcrunError):
    """A checkpoint is not there any more, or cannot be taken over."""


def link(source: Path, entry: Manifest, directory: Path) -> None:
    """Put the files of a checkpoint under another directory, complete; raise `NotThere`."""
    place = directory / checkpoint_name(entry.step, manifest.INHERITED)
    place.mkdir()
    is_copied = False
    try:
        if (fault := trust.fault(source)) is not None:
            raise NotThere(f"{source}: {fault.message}")
        for name, file in entry.files.items():
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / name, target, follow_symlinks=False)
            except OSError as error:
                if shared_look.is_absence(error):
                    raise
                # Some file systems have no such links, or not between directories.
                is_copied = True
                with files.open_stream(source / name) as old, open(target, "xb") as new:
                    shutil.copyfileobj(old, new, 1 << 23)
            if (size := target.lstat().st_size) != file.bytes:
                raise NotThere(f"{source / name} has {size} bytes, not {file.bytes}")
    except OSError as error:
        if shared_look.is_absence(error):
            raise NotThere(f"{source} has been removed meanwhile") from None
        raise
    if is_copied:
        manifest.sync_tree(place)
    replace(entry, attempt=manifest.INHERITED).write(place)


def settle(run: RunPaths) -> None:
    """Move what came with a run's values to its checkpoints, unless that was done.

    Raises HpcrunError if it cannot be moved.
    """
    point = chosen_point.read(run)
    if point is None or point.parent is None:
        return
    name = checkpoint_name(point.parent["step"], manifest.INHERITED)
    shared_look.refresh(run.point.parent)
    try:
        run.checkpoints.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (run.point.parent / name).rename(run.checkpoints / name)
            manifest.sync_directory(run.checkpoints)
    except OSError as error:
        raise HpcrunError(f"{run.checkpoints} does not take {name}: {error.strerror}") from None
