"""The files and directories that ``staging.paths`` names, and the list of files in each."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hpcrun.errors import UsageError
from hpcrun.text import one_line


class SourceProblem(UsageError):
    """A path that cannot be staged."""


@dataclass(frozen=True)
class SourceFile:
    """A file as it was listed."""

    name: str
    """Relative to its source; empty where that is the file."""
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class StagedSource:
    """A file or directory of shared storage, and its name among what is staged."""

    name: str
    path: str

    def files(self) -> list[SourceFile]:
        """List all files, those behind symbolic links included, in an order of their names.

        Raises SourceProblem if something in it cannot be read, is no file, or links in a circle.
        """
        try:
            return sorted(_walk(self.path, "", ()), key=lambda file: file.name)
        except OSError as error:
            where = one_line(str(error.filename or self.path))
            raise SourceProblem(
                f"staging.paths: {where} cannot be read: {error.strerror}",
                hint="correct its permissions, or leave it out",
            ) from error


def key(source: StagedSource, files: Collection[SourceFile]) -> str:
    """Return a digest of a source's place and of its files' names, sizes and times."""
    found = hashlib.sha256(os.path.realpath(source.path).encode(errors="surrogateescape"))
    for file in files:
        line = f"\0{file.name}\0{file.size}\0{file.mtime_ns}"
        found.update(line.encode(errors="surrogateescape"))
    return found.hexdigest()[:20]


def find(patterns: Sequence[str]) -> list[StagedSource]:
    """Return what absolute paths and globs name, in their order.

    Raises SourceProblem if a path does not exist, a glob matches nothing, or two sources have one
    name.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        if not matches:
            raise SourceProblem(
                f"staging.paths: nothing matches {one_line(pattern)}",
                hint="correct the glob; `*` matches within one directory",
            )
        for path in matches:
            _check(path)
            name = os.path.basename(path)  # noqa: PTH119
            if found.setdefault(name, path) != path:
                raise SourceProblem(
                    f"staging.paths: {one_line(found[name])} and {one_line(path)} would both be "
                    f"${{hpcrun:staged}}/{one_line(name)}",
                    hint="stage the directory that holds them, or rename one of them",
                )
    return [StagedSource(name, path) for name, path in found.items()]


def _check(path: str) -> None:
    """Raise SourceProblem unless a path is a file or directory that can be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise SourceProblem(
            f"staging.paths: {one_line(path)} cannot be staged: {error.strerror}",
            hint="correct the path; relative ones begin at the spec's directory",
        ) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceProblem(f"staging.paths: {one_line(path)} is no file and no directory")
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(path, wanted):
        raise SourceProblem(
            f"staging.paths: {one_line(path)} cannot be read by you",
            hint="ask its owner, or correct the path",
        )


def _walk(path: str, name: str, above: tuple[tuple[int, int], ...]) -> Iterator[SourceFile]:
    """Yield the files at and below a path; ``above`` are the directories that it lies in."""
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode):
        yield SourceFile(name, found.st_size, found.st_mtime_ns)
        return
    if not stat.S_ISDIR(found.st_mode):
        raise SourceProblem(
            f"staging.paths: {one_line(path)} is neither a file nor a directory",
            hint="leave it out: pipes, sockets and devices cannot be copied",
        )
    own = (found.st_dev, found.st_ino)
    if own in above:
        raise SourceProblem(f"staging.paths: {one_line(path)} is a link to a directory above it")
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries]
    for each in names:
        yield from _walk(f"{path}/{each}", f"{name}/{each}" if name else each, (*above, own))
