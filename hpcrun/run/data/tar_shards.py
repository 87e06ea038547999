"""Samples of tar files by number, in shards as WebDataset writes them: read, never written.

Where each file begins is found once, by the headers of each shard, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.host import user_cache
from hpcrun.run.data.token_files import named_files
from hpcrun.run.protocol.output import tell
from hpcrun.state import files

# The key of a sample, and the part of the name that says which of its files it is.
_NAME = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")
# Most shards that a process has open, and that are looked through at the same time.
_OPEN, _AT_ONCE = 256, 16


class TarShards:
    """The samples of tar files: a map-style dataset of dicts of bytes, by extension.

    Files that follow one another and have the same name up to its first dot are a sample:
    ``a/7.jpg`` and ``a/7.json`` are ``{"__key__": "a/7", "jpg": …, "json": …}``.

    Parameters
    ----------
    paths
        A path, a glob such as ``train-*.tar``, or several, which are taken in their order.

    Raises
    ------
    UsageError
        There is no such file, or it is no tar file, compressed, cut off, or without a sample.
    """

    def __init__(self, paths: str | os.PathLike[str] | Iterable[Any]) -> None:
        import numpy

        self._paths = named_files("TarShards", paths)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._indices = [*pool.map(_index_of, self._paths)]
        self._first = numpy.cumsum([0, *(int(index["sample"][-1]) + 1 for index in self._indices)])
        self._descriptors: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._first[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample; raise IndexError for one that is not there."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        shard = int(self._first.searchsorted(index, "right")) - 1
        rows, number = self._indices[shard], index - int(self._first[shard])
        first, last = rows["sample"].searchsorted([number, number + 1])
        found: dict[str, Any] = {}
        for row in rows[first:last]:
            key, extension = _split(os.fsdecode(row["name"])) or ("", "")
            data = os.pread(self._descriptor(shard), int(row["size"]), int(row["offset"]))
            if len(data) != row["size"]:
                raise UsageError(f"TarShards: {self._paths[shard]} has changed since it was opened")
            found |= {"__key__": key, extension: data}
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which opens the shards itself."""
        return {**self.__dict__, "_descriptors": {}}

    def _descriptor(self, shard: int) -> int:
        if shard not in self._descriptors:
            if len(self._descriptors) >= _OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[shard] = os.open(self._paths[shard], os.O_RDONLY)
        return self._descriptors[shard]


def _index_of(path: Path) -> Any:
    """Return where each file of a shard is: an array of sample, offset, size and name, mapped."""
    import numpy

    try:
        state = path.stat()
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from error
    said = f"{path.absolute()}\0{state.st_size}\0{state.st_mtime_ns}"
    kept = user_cache() / "tar_shards" / f"{hashlib.sha256(os.fsencode(said)).hexdigest()}.npy"
    try:
        return numpy.load(kept, mmap_mode="r")
    except (OSError, ValueError):
        pass  # Not there yet, or torn.
    index = _read_headers(path, state.st_size)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(kept) as stream:
            numpy.save(stream, index)
    except OSError as error:
        tell(f"TarShards: what was found in {path} cannot be kept in {kept}: {error.strerror}")
        return index
    return numpy.load(kept, mmap_mode="r")


def _read_headers(path: Path, size: int) -> Any:
    import numpy

    rows: list[tuple[int, int, int, bytes]] = []
    sample, before = -1, None
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # It keeps them all.
                if not member.isfile() or (split := _split(member.name)) is None:
                    continue
                sample, before = sample + (split[0] != before), split[0]
                rows.append((sample, member.offset_data, member.size, os.fsencode(member.name)))
            # Where the next header would be are the zeros with which an archive ends.
            is_whole = tar.offset < size
    except (OSError, tarfile.TarError) as error:
        raise _error(path, f"cannot be read as an uncompressed tar file: {error}") from error
    if not is_whole:
        raise _error(path, "is cut off: it has no end mark")
    if not rows:
        raise _error(path, "has no sample: no file whose name has an extension")
    longest = max(len(name) for *_, name in rows)
    fields = [("sample", "<i8"), ("offset", "<i8"), ("size", "<i8"), ("name", f"S{longest}")]
    return numpy.array(rows, fields)


def _split(name: str) -> tuple[str, str] | None:
    """Return the key and the extension of a file's name; None for one that is of no sample."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], found[2])


def _error(path: Path, problem: str) -> UsageError:
    return UsageError(f"TarShards: {path} {problem}")
