"""Removal of files below a directory of this user's, through no link, whoever changes it meanwhile.

Each directory on the way is opened from the one above it, as a directory and no link, and has to be
this user's. What is removed is named relative to the last of these descriptors, so that no rename
between the look and the removal leads elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.state import manifest
from hpcrun.text import listed

_STILL_OPEN = ".nfs"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def obstacle(base: Path, directories: Sequence[Path]) -> str | None:
    """Return why nothing in one of some directories below ``base`` is removed; None if it may be.

    What is not there is no obstacle. Each directory on their ways is looked at once.
    """
    ways = [one.relative_to(base).parts for one in directories]
    try:
        _look_into(base, base, None, sorted(ways))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _look_into(path: Path, part: Path, parent: int | None, ways: Sequence[tuple[str, ...]]) -> None:
    """Open a directory, and those on sorted ways below it; raise OSError if one is not its own."""
    with contextlib.suppress(FileNotFoundError), _open_own(path, part, parent) as here:
        for name, below in groupby(filter(None, ways), key=itemgetter(0)):
            _look_into(path / name, Path(name), here, [way[1:] for way in below])


def remove(base: Path, path: Path, *, set_aside: bool = False) -> None:
    """Remove a file, a link, or a directory with all that is in it.

    With ``set_aside`` a directory first gets a name that no reader takes for a checkpoint. Raise
    OSError if it cannot be removed, when some of it may be gone.
    """
    with _open_below(base, path.parent) as parent:
        name = path.name
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if set_aside:
            name = manifest.trashed(path).name
            with contextlib.suppress(FileNotFoundError):
                _remove_tree(name, parent)
            os.rename(path.name, name, src_dir_fd=parent, dst_dir_fd=parent)
        _remove_tree(name, parent)


def check_all_removed(failed: Sequence[str]) -> None:
    """Raise HpcrunError where something could not be removed; each says what, and why."""
    if failed:
        raise HpcrunError(
            f"not all could be removed: {listed(failed, 3, '; ', '; …')}",
            hint="repeat the command once that is mended",
        )


@contextlib.contextmanager
def _open_below(base: Path, directory: Path) -> Iterator[int]:
    """Yield a descriptor of a directory; raise OSError if a part of its path is not its own."""
    with contextlib.ExitStack() as stack:
        path, parent = base, stack.enter_context(_open_own(base, base, None))
        for part in map(Path, directory.relative_to(base).parts):
            path = path / part
            parent = stack.enter_context(_open_own(path, part, parent))
        yield parent


@contextlib.contextmanager
def _open_own(path: Path, part: Path, parent: int | None) -> Iterator[int]:
    """Yield a descriptor of one directory, opened from the one above; raise as `_open_below`."""
    try:
        found = os.open(part, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        why = "a link, and none is followed" if path.is_symlink() else error.strerror
        raise OSError(error.errno, why, str(path)) from None
    try:
        if part.name == ".." or os.fstat(found).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "somebody else's", str(path))
        yield found
    finally:
        os.close(found)


@contextlib.contextmanager
def _still_open(name: str) -> Iterator[None]:
    """Leave a file alone that a client of NFS keeps under another name while it is open."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EBUSY or not name.startswith(_STILL_OPEN):
            raise


def rmdir(name: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a directory, unless it holds nothing but files that this host has open.

    A client of NFS keeps those under another name until they are closed; the next removal of that
    name finds the directory empty.
    """
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _holds_open_files(
            name, dir_fd
        ):
            raise


def _holds_open_files(name: str | Path, parent: int | None) -> bool:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        names = os.listdir(descriptor)  # noqa: PTH208 - a descriptor
        return bool(names) and all(
            each.startswith(_STILL_OPEN)
            or (
                stat.S_ISDIR(os.stat(each, dir_fd=descriptor, follow_symlinks=False).st_mode)
                and _holds_open_files(each, descriptor)
            )
            for each in names
        )
    finally:
        os.close(descriptor)


def _remove_tree(name: str, parent: int) -> None:
    walk = os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=parent)
    try:
        for where, directories, files, here in walk:
            if os.fstat(here).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "somebody else's", where)
            for each in files:
                with _still_open(each):
                    os.unlink(each, dir_fd=here)
            for each in directories:
                try:
                    rmdir(each, dir_fd=here)
                except NotADirectoryError:
                    os.unlink(each, dir_fd=here)  # a link to a directory
        rmdir(name, dir_fd=parent)
    except RecursionError:
        raise OSError(errno.ELOOP, "directories are nested too deeply", name) from None
