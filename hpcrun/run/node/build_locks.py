"""Locks of torch's builds, for which `torch.utils.cpp_extension` waits as long as they exist.

A process that builds an extension keeps the lock open, and removes it when it is done. One that was
ended meanwhile leaves it, and every later start waits for ever. Whether another node builds there
cannot be seen from here: so only locks in a run's own directory are removed. Where the default
directory of the user has one that nobody on this node holds, the attempt builds in a directory of
its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpcrun.host import process_directories
from hpcrun.slurm.background import BackgroundCall

VARIABLE = "TORCH_EXTENSIONS_DIR"
# Seconds in which a file system has to answer.
_PATIENCE = 3.0
_MOST = 100


def directory(environment: Mapping[str, str]) -> Path | None:
    """Return the user's own directory of builds; None if torch's default holds."""
    own = environment.get(VARIABLE)
    return Path(own) if own else None


def left_behind(environment: Mapping[str, str]) -> list[Path]:
    """Return the locks that programs with this environment would wait for, and nobody here holds.

    Empty also where the file system does not answer.
    """
    look = BackgroundCall(lambda: _unheld(_locks(environment)))
    with contextlib.suppress(OSError):
        return look.result()[:_MOST] if look.wait(_PATIENCE) else []
    return []


def _locks(environment: Mapping[str, str]) -> list[Path]:
    own = directory(environment)
    if own is not None:
        return sorted(own.glob("*/lock"))
    home = Path(environment.get("HOME") or "/")
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    # By version of Python and of CUDA, then by name.
    return sorted(cache.glob("torch_extensions/*/*/lock"))


def _unheld(locks: Iterable[Path]) -> list[Path]:
    """Return the locks that no process of this node has open."""
    found = {}
    for path in locks:
        with contextlib.suppress(OSError):
            status = path.lstat()
            found[status.st_dev, status.st_ino] = path
    if found:
        for link in _open_locks():
            with contextlib.suppress(OSError):
                status = link.stat()
                found.pop((status.st_dev, status.st_ino), None)
    return list(found.values())


def _open_locks() -> Iterable[Path]:
    """Yield links of /proc to files of that name which this user's processes have open."""
    for process in process_directories():
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).endswith("/lock"):  # noqa: PTH115 - text
                        yield link


def remove(locks: Iterable[Path]) -> None:
    """Remove locks that nobody can hold."""
    for path in locks:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
