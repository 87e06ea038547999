"""Checksums of a checkpoint's files, and whether a file still has the one it should have."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from hpcrun.state.manifest import Fault, File

_BLOCK = 1 << 22


class Checksum:
    """The checksum of what passes: XXH3's of 128 bits, at the speed of memory, or SHA-256.

    Parameters
    ----------
    like
        Of the kind that this file has; else the faster one that is installed.

    Raises
    ------
    ImportError
        ``like`` needs the package xxhash, which is not there.
    """

    def __init__(self, like: File | None = None) -> None:
        wanted = "xxh128" if like is None or like.xxh128 else "sha256"
        self._kind = "sha256"
        self._digest: Any = hashlib.sha256()
        if wanted == "xxh128":
            try:
                import xxhash

                self._kind, self._digest = wanted, xxhash.xxh3_128()
            except ImportError:
                if like is not None:
                    raise

    def update(self, data: Any) -> None:
        """More bytes."""
        self._digest.update(data)

    def of(self, size: int) -> File:
        """The file of which so many bytes have passed."""
        return File(size, **{self._kind: self._digest.hexdigest()})


def describe(path: Path, *, sync: bool = False, like: File | None = None) -> File:
    """Size and checksum of a file as it is; ``sync`` makes it durable first.

    Raises
    ------
    OSError, ImportError
        It cannot be read; as `Checksum`.
    """
    checksum = Checksum(like)
    size = 0
    with open(path, "rb") as stream:
        if sync:
            os.fsync(stream.fileno())
        while block := stream.read(_BLOCK):
            checksum.update(block)
            size += len(block)
    return checksum.of(size)


def damage(directory: Path, name: str, expected: File) -> Fault | None:
    """What is wrong with a file of a checkpoint; None when it is as the manifest says."""
    path = directory / name
    try:
        if path.stat().st_size != expected.bytes:
            return Fault(
                f"{name} has {path.stat().st_size} bytes, its manifest says {expected.bytes}"
            )
        if describe(path, like=expected) != expected:
            return Fault(f"{name} does not have the checksum that its manifest says")
    except (FileNotFoundError, NotADirectoryError):
        return Fault(f"{name} is missing")
    except OSError as error:
        return Fault(f"{name} cannot be read: {error.strerror}", lasting=False)
    except ImportError:
        return Fault(f"{name} cannot be checked without the package xxhash", lasting=False)
    return None
