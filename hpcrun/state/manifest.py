"""The manifest of a checkpoint: written last, checked before a restore."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hpcrun import shared_look
from hpcrun.fields import COUNT, MAPPING, METRICS, TEXT, TEXTS, TIME, Kinds, wrong
from hpcrun.state import files as state_files
from hpcrun.state.spec.parallel_block import laid_out
from hpcrun.text import plural

FORMAT = 1
NAME = "manifest.json"
_DIRECTORY = re.compile("step-([0-9]{1,15})-a([0-9]{1,9})")
_TRASH = ".trash-"
_QUARANTINE = "bad-"
_KINDS: Kinds = {
    **dict.fromkeys(("step", "attempt", "world_size", "zero_stage", "train_batch_size"), COUNT),
    "time": TIME,
    "metrics": METRICS,
    "fixed_size": TEXT,
    "parallel": MAPPING,
    "own_states": TEXTS,
}


@dataclass(frozen=True)
class File:
    """A file of a checkpoint: its size in bytes and one of the two checksums."""

    bytes: int
    sha256: str | None = None
    xxh128: str | None = None


@dataclass(frozen=True)
class Fault:
    """The reason why a checkpoint is not restored."""

    message: str
    """The fault, and its file."""

    lasting: bool = True
    """The data on disk is wrong. Otherwise it could not be read this time, and may be whole."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a complete checkpoint."""

    step: int
    """Finished optimizer steps."""
    attempt: int
    """The attempt that saved."""
    time: float
    """Seconds since the epoch."""
    world_size: int
    """The number of ranks that the shards were made for."""
    zero_stage: int
    train_batch_size: int
    """The global batch, from which the data position follows."""
    files: dict[str, File]
    """Path relative to the checkpoint's directory -> size and checksum."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Name -> the last finite value logged before the save."""
    fixed_size: str | None = None
    """The reason why another number of ranks cannot resume from it; None if it can."""
    parallel: dict[str, int] = field(default_factory=dict)
    """Axes along which the model was divided -> ranks, as in the spec's ``parallel``."""
    own_states: list[str] = field(default_factory=list)
    """Names of the user's states that cannot be restored on another number of ranks."""

    @property
    def ranks(self) -> str:
        """The ranks that saved, and how they divided the model, in words."""
        return ranks_text(self.world_size, self.parallel)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def write(self, directory: Path) -> None:
        """Write the manifest; from then on the checkpoint exists.

        The names of the files are made durable before it and its own name after it, so that a
        power cut leaves no manifest of files that are gone.
        """
        for each in sorted({(directory / name).parent for name in self.files} | {directory}):
            sync_directory(each)
        data = {"format": FORMAT, **asdict(self)}
        state_files.write_json(directory / NAME, {**data, "sha256": _digest(data)})
        sync_directory(directory)


def ranks_text(world_size: int, parallel: Mapping[str, int]) -> str:
    """Return a number of ranks, and how they divide a model, in words."""
    axes = ", ".join(f"{axis} {size}" for axis, size in parallel.items())
    return plural(world_size, "rank") + (f" ({axes})" if axes else "")


def read(directory: Path) -> Manifest | None:
    """Read the manifest of a checkpoint directory; None if it is not a complete checkpoint."""
    found = inspect(directory)
    return found if isinstance(found, Manifest) else None


def inspect(directory: Path) -> Manifest | Fault | None:
    """Read the manifest of a checkpoint directory, or its fault; None without one."""
    try:
        data = state_files.read_json(directory / NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Fault(f"{NAME} cannot be read: {error.strerror}", lasting=False)
    except ValueError:
        return Fault(f"{NAME} is not JSON")
    if not isinstance(data, dict):
        return Fault(f"{NAME} is not a mapping")
    if data.get("format") != FORMAT:
        return Fault(f"{NAME} has a format that this hpcrun does not know", lasting=False)
    said = data.pop("sha256", None)
    if said is not None and said != _digest(data):
        return Fault(f"{NAME} does not have the SHA-256 that it says")
    del data["format"]
    try:
        files = {name: File(**file) for name, file in data.pop("files").items()}
        found = Manifest(**data, files=files)
    except (TypeError, KeyError, AttributeError):
        return Fault(f"{NAME} is not that of a checkpoint")
    return found if (fault := _implausible(found)) is None else fault


def _implausible(found: Manifest) -> Fault | None:
    if (
        wrong(vars(found), _KINDS, _KINDS.keys() - {"fixed_size"})
        or laid_out(found.parallel) != found.parallel
        or not all(COUNT.accepts(file.bytes) for file in found.files.values())
        or not all(_has_one_checksum(file) for file in found.files.values())
    ):
        return Fault(f"{NAME} is not that of a checkpoint")
    if not found.files:
        return Fault(f"{NAME} names no file")
    for name in found.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            return Fault(f"{NAME} names a file outside the checkpoint: {name!r}")
    return None


def _has_one_checksum(file: File) -> bool:
    return [type(each) for each in (file.sha256, file.xxh128) if each is not None] == [str]


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def scan(checkpoints: Path) -> list[tuple[Path, Manifest | Fault]]:
    """Return the checkpoints that have a manifest, newest first: by step, then by attempt."""
    found: list[tuple[tuple[int, int], Path, Manifest | Fault]] = []
    for path, key in _directories(checkpoints):
        entry = inspect(path)
        if isinstance(entry, Manifest) and (entry.step, entry.attempt) != key:
            entry = Fault(f"{NAME} is that of step {entry.step} by attempt {entry.attempt}")
        if entry is not None:
            found.append((key, path, entry))
    return [(path, entry) for _, path, entry in sorted(found, key=lambda item: item[0])[::-1]]


def complete(checkpoints: Path) -> list[tuple[Path, Manifest]]:
    """Return the complete checkpoints, newest first: by step, then by attempt."""
    return [(path, found) for path, found in scan(checkpoints) if isinstance(found, Manifest)]


def abandoned(checkpoints: Path, attempt: float = math.inf, step: float = math.inf) -> list[Path]:
    """Return the checkpoints up to an attempt and a step that were never completed."""
    return [
        path
        for path, (at, by) in _directories(checkpoints)
        if at <= step and by <= attempt and NAME not in shared_look.names(path)
    ]


def quarantine(checkpoint: Path) -> Path:
    """Return the path that a damaged checkpoint is moved to."""
    return checkpoint.with_name(_QUARANTINE + checkpoint.name)


def quarantined(checkpoints: Path) -> list[Path]:
    """Return the damaged checkpoints of a run that were moved aside, by name."""
    return sorted(checkpoints.glob(_QUARANTINE + "*"))


def discard(directory: Path) -> None:
    """Remove a checkpoint; a kill in the middle leaves nothing that looks like one."""
    aside = trashed(directory)
    shutil.rmtree(aside, ignore_errors=True)
    directory.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def trashed(checkpoint: Path) -> Path:
    """Return the path of a checkpoint that is being removed."""
    return checkpoint.with_name(_TRASH + checkpoint.name)


def trash(checkpoints: Path) -> list[Path]:
    """Return the remains of checkpoints whose removal was cut short, by name."""
    return sorted(checkpoints.glob(_TRASH + "*"))


def _directories(checkpoints: Path) -> list[tuple[Path, tuple[int, int]]]:
    """Return the checkpoint directories, with the step and the attempt of their names."""
    matches = map(_DIRECTORY.fullmatch, shared_look.names(checkpoints))
    return [(checkpoints / match[0], (int(match[1]), int(match[2]))) for match in matches if match]


def sync_tree(directory: Path) -> None:
    """Make a directory durable, with all that is in it."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with open(Path(parent, name), "rb") as stream:
                os.fsync(stream.fileno())
        sync_directory(Path(parent))


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where its file system can do that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
