"""The copies of one run's checkpoints, in the place where they are: the calls into fsspec."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.features.object_storage.block import LIBRARIES
from hpcrun.state import manifest

# Seconds after which a server that is silent counts as down, and how often a call is tried before.
# Checksums in trailers are refused by servers that are not Amazon's; the manifest has better ones.
_OF_S3 = {
    "connect_timeout": 20,
    "read_timeout": 60,
    "retries": {"max_attempts": 2},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
# Of other errors it is not known that they come again.
_LASTING = ("NoCredentialsError", "ProfileNotFound", "PartialCredentialsError", "ParamValidation")


class LibraryMissing(HpcrunError):
    """This Python lacks the library of a store."""


class Store:
    """The copies of one run's checkpoints.

    ``place`` is theirs, such as ``s3://bucket/prefix/study/3-0123456789abcdef``; ``options`` are of
    fsspec's file system. Raises `LibraryMissing`, and whatever the library raises on wrong options.
    Each method raises what the library does: OSError for most, or an error of botocore's.
    """

    def __init__(self, place: str, options: Mapping[str, Any]) -> None:
        scheme = place.partition("://")[0]
        try:
            import fsspec

            kind = fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            needs = " ".join(LIBRARIES[scheme])
            raise LibraryMissing(
                f"object_storage: {place} needs {needs}, which the job's Python does not have "
                f"({error})",
                hint=f"python -m pip install {needs}",
            ) from error
        settings: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if scheme == "s3":
            given = options.get("config_kwargs") or {}
            settings = {**settings, **options, "config_kwargs": {**_OF_S3, **given}}
        else:
            settings = {**settings, "auto_mkdir": True}
        self.place, self._is_directory = place, scheme == "file"
        self._files = kind(**settings)
        self._path = kind._strip_protocol(place)
        # Made here, it might be on a node's own disk, where the storage is not mounted.
        above = Path(self._path).parents[1]
        if self._is_directory and not shared_look.is_directory(above):
            raise FileNotFoundError(f"there is no directory {above} on {os.uname().nodename}")

    def manifest(self, name: str) -> bytes | None:
        """Return the bytes of a copy's manifest; None where it has none."""
        try:
            found: bytes = self._files.cat_file(f"{self._path}/{name}/{manifest.NAME}")
        except FileNotFoundError:
            return None
        return found

    def put(self, name: str, file: str, source: Path) -> None:
        """Copy one file of a checkpoint; an object is whole or, in a directory, may be cut off."""
        self._files.put_file(str(source), f"{self._path}/{name}/{file}")

    def sizes(self, name: str) -> dict[str, int]:
        """Return the files of a copy -> their bytes."""
        above = f"{self._path}/{name}/"
        found = self._files.find(above, detail=True)
        return {path.removeprefix(above): int(one["size"]) for path, one in found.items()}

    def finish(self, name: str, data: bytes) -> None:
        """Write the manifest, which makes the copy complete."""
        self._files.pipe_file(f"{self._path}/{name}/{manifest.NAME}", data)

    def fetch(self, name: str, file: str, target: Path) -> None:
        """Copy one file of a checkpoint back."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._files.get_file(f"{self._path}/{name}/{file}", str(target))

    def names(self) -> list[str]:
        """Return the names below the place, in any order; none where there is none of them yet."""
        try:
            found = self._files.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def remove(self, name: str) -> None:
        """Remove a copy, its manifest first, so that a kill leaves nothing that looks like one."""
        if self._is_directory:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._path}/{name}/{manifest.NAME}")
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(f"{self._path}/{name}", recursive=True)
            return
        # One by one: fsspec's own removal of many tells nothing of those that stay.
        for file in sorted(self.sizes(name), key=lambda file: file != manifest.NAME):
            self._files.rm_file(f"{self._path}/{name}/{file}")


def is_lasting(error: Exception) -> bool:
    """Check whether an error will come again, unlike that of a server that is down."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    kinds = {kind.__name__ for kind in type(error).__mro__}
    expected = isinstance(error, (LibraryMissing, PermissionError, FileNotFoundError, TypeError))
    return expected or any(name.startswith(_LASTING) for name in kinds)


def words(error: Exception) -> str:
    """Return an error of the store's in words, with the next step where it is known."""
    text = error.message if isinstance(error, HpcrunError) else str(error).strip()
    name = type(error).__name__
    hint = error.hint if isinstance(error, HpcrunError) else None
    if isinstance(error, PermissionError) or name.startswith(("NoCredentials", "PartialCred")):
        hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong into environment.secrets_file"
    elif isinstance(error, FileNotFoundError):
        hint = "make the bucket or the directory, or name another in object_storage.to"
    said = text if isinstance(error, HpcrunError) else f"{name}: {text}" if text else name
    return f"{said} ({hint})" if hint else said
