"""The manifest of a checkpoint: written last, checked before a restore."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.fields import COUNT, MAPPING, METRICS, TEXT, TEXTS, TIME, Kinds, wrong
from hpcrun.state import files as state_files
from hpcrun.state.spec.parallel_block import laid_out
from hpcrun.text import plural

FORMAT = 1
NAME = "manifest.json"
INHERITED = 0
"""In place of an attempt: the checkpoint is another run's, from which this one goes on."""
_DIRECTORY = re.compile("step-([0-9]{1,15})-a([0-9]{1,9})")
_TRASH = ".trash-"
_QUARANTINE = "bad-"
# Threads that remove a checkpoint of more files than that.
_REMOVERS, _MANY = 8, 256
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
        for inner in sorted({name.rpartition("/")[0] for name in self.files} | {""}):
            sync_directory(directory / inner)
        # A hundred thousand files: `dataclasses.asdict` would copy each.
        named = {name: vars(file) for name, file in self.files.items()}
        data = {"format": FORMAT, **vars(self), "files": named}
        state_files.write_json(directory / NAME, {**data, "sha256": _digest(data)})
        sync_directory(directory)


def ranks_text(world_size: int, parallel: Mapping[str, int]) -> str:
    """Return a number of ranks, and how they divide a model, in words."""
    axes = ", ".join(f"{axis} {size}" for axis, size in parallel.items())
    return plural(world_size, "rank") + (f" ({axes})" if axes else "")


def is_inherited(name: str) -> bool:
    """Check whether a checkpoint of this name is one with which the run began."""
    match = _DIRECTORY.fullmatch(name)
    return match is not None and int(match[2]) == INHERITED


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
    return _implausible(found) or found


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
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            return Fault(f"{NAME} names a file outside the checkpoint: {name!r}")
    return None


def _has_one_checksum(file: File) -> bool:
    return [type(each) for each in (file.sha256, file.xxh128) if each is not None] == [str]


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def newest_first(checkpoints: Path) -> list[Path]:
    """Return the directories of checkpoints, also of incomplete ones, by step and attempt."""
    found = sorted(_directories(checkpoints), key=lambda item: item[1], reverse=True)
    return [path for path, _ in found]


def inspect_named(directory: Path) -> Manifest | Fault | None:
    """As `inspect`; a manifest of another step or attempt than the directory's is a fault."""
    entry, match = inspect(directory), _DIRECTORY.fullmatch(directory.name)
    key = (int(match[1]), int(match[2])) if match else None
    if isinstance(entry, Manifest) and (entry.step, entry.attempt) != key:
        return Fault(f"{NAME} is that of step {entry.step} by attempt {entry.attempt}")
    return entry


def scan(checkpoints: Path) -> Iterator[tuple[Path, Manifest | Fault]]:
    """Yield the checkpoints that have a manifest, newest first: by step, then by attempt.

    Each manifest is read when its turn comes.
    """
    for path in newest_first(checkpoints):
        if (entry := inspect_named(path)) is not None:
            yield path, entry


def complete(checkpoints: Path) -> list[tuple[Path, Manifest]]:
    """Return the complete checkpoints, newest first: by step, then by attempt."""
    return [(path, found) for path, found in scan(checkpoints) if isinstance(found, Manifest)]


def abandoned(
    checkpoints: Path,
    attempt: float = math.inf,
    step: float = math.inf,
    known: Collection[Path] = (),
) -> list[Path]:
    """Return the checkpoints up to an attempt and a step that were never completed.

    Those ``known`` to be complete are not looked into.
    """
    return [
        path
        for path, (at, by) in _directories(checkpoints)
        if at <= step
        and by <= attempt
        and path not in known
        and NAME not in shared_look.names(path)
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
    remove(aside)
    directory.rename(aside)
    remove(aside)


def remove(directory: Path) -> None:
    """Remove a directory as far as it can be; many files at a time where there are many.

    A call to shared storage takes a millisecond, in which Python does other things.
    """
    with suppress(OSError):
        # By its descriptor: what a link leads to stays.
        here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            names = os.listdir(here)  # noqa: PTH208 - of the descriptor
            if len(names) > _MANY:
                shares = (names[number::_REMOVERS] for number in range(_REMOVERS))
                _unlink_at_once(here, shares)
        finally:
            os.close(here)
    shutil.rmtree(directory, ignore_errors=True)


def _unlink_at_once(directory: int, shares: Iterable[list[str]]) -> None:
    """Unlink files of an open directory, each share in a thread; what cannot be is left."""

    def unlink(names: list[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)

    begun = []
    try:
        for share in shares:
            thread = threading.Thread(target=unlink, args=(share,), daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError:  # no more threads, or the interpreter is on its way out
        pass
    finally:
        for thread in begun:
            thread.join()


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
