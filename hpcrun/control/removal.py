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
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.state import manifest
from hpcrun.text import listed

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def obstacle(base: Path, directory: Path) -> str | None:
    """Return why nothing in a directory below ``base`` is removed; None if it is not there."""
    try:
        with _opened(base, directory):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def remove(base: Path, path: Path, *, set_aside: bool = False) -> None:
    """Remove a file, a link, or a directory with all that is in it.

    With ``set_aside`` a directory first gets a name that no reader takes for a checkpoint. Raise
    OSError if it cannot be removed, when some of it may be gone.
    """
    with _opened(base, path.parent) as parent:
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
def _opened(base: Path, directory: Path) -> Iterator[int]:
    """Yield a descriptor of a directory; raise OSError if a part of its path is not its own."""
    with contextlib.ExitStack() as stack:
        path, parent = base, None
        for part in (base, *map(Path, directory.relative_to(base).parts)):
            path = path / part
            try:
                parent = os.open(part, _DIRECTORY, dir_fd=parent)
            except OSError as error:
                why = "a link, and none is followed" if path.is_symlink() else error.strerror
                raise OSError(error.errno, why, str(path)) from None
            stack.callback(os.close, parent)
            if part.name == ".." or os.fstat(parent).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "somebody else's", str(path))
        assert parent is not None
        yield parent


def _remove_tree(name: str, parent: int) -> None:
    walk = os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=parent)
    try:
        for where, directories, files, here in walk:
            if os.fstat(here).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "somebody else's", where)
            for each in files:
                os.unlink(each, dir_fd=here)
            for each in directories:
                try:
                    os.rmdir(each, dir_fd=here)
                except NotADirectoryError:
                    os.unlink(each, dir_fd=here)  # a link to a directory
        os.rmdir(name, dir_fd=parent)
    except RecursionError:
        raise OSError(errno.ELOOP, "directories are nested too deeply", name) from None
