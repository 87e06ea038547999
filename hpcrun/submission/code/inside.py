"""Open files of a tree in such a way that no link leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class LeftOut(Exception):
    """A file that does not belong into an archive; the message says why."""


class Inside:
    """Files below a root, opened one after the other; the last one's directory stays open.

    So files that lie beside each other cost one way to their directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parents: list[str] = []
        self._directory: int | None = None

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def open(self, name: str) -> tuple[int, os.stat_result]:
        """Open a regular file; return its descriptor, and the status of what was opened.

        The root is a real path, and ``name`` relative to it, with slashes. Each of its parts is
        opened in the directory that was opened before it and never through a symbolic link, so that
        the file is below the root even if somebody exchanges directories meanwhile. Nothing else
        than a regular file is opened, and a FIFO that takes its place at the last moment blocks
        nobody. Raises LeftOut, and OSError if the file cannot be opened.
        """
        *parents, last = name.split("/")
        if not {"", ".", ".."}.isdisjoint((*parents, last)):
            raise LeftOut("it is not below the root")
        directory = self._enter(parents)
        _check(os.stat(last, dir_fd=directory, follow_symlinks=False))
        try:
            descriptor = os.open(last, _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                raise LeftOut("it is not a regular file") from None
            raise
        try:
            return descriptor, _check(os.fstat(descriptor))
        except LeftOut:
            os.close(descriptor)
            raise

    def _enter(self, parents: list[str]) -> int:
        """Return the descriptor of a directory below the root."""
        if self._directory is None or parents != self._parents:
            self._leave()
            self._directory, self._parents = os.open(self._root, _DIRECTORY), parents
            try:
                for part in parents:
                    above, self._directory = self._directory, _enter(self._directory, part)
                    os.close(above)
            except (OSError, LeftOut):
                self._leave()
                raise
        return self._directory

    def _leave(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def open_inside(root: Path, name: str) -> tuple[int, os.stat_result]:
    """Open one file below ``root``, as `Inside.open`."""
    with Inside(root) as inside:
        return inside.open(name)


def _enter(directory: int, part: str) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise LeftOut("it is reached through a symbolic link") from None
        raise


def _check(found: os.stat_result) -> os.stat_result:
    if stat.S_ISLNK(found.st_mode):
        raise LeftOut("it is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise LeftOut("it is not a regular file")
    return found
