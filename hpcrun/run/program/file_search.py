"""The files that a program writes, found within bounds."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcrun.run.work.links import leads_to_code

MOST_ENTRIES = 5_000
DEEPEST = 8
_MOST_DIRECTORIES = 100_000
# Directories that hold no output, and large ones of other programs.
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})
_MAGIC = re.compile(r"[*?[]")


class FoundFile(NamedTuple):
    """A file or directory, as it was found."""

    path: Path
    size: int
    modified: float
    """Seconds since the epoch, by the clock of the storage."""
    number: int
    """Its inode: another one means another file of the same name."""
    is_directory: bool = False


def search(
    root: Path,
    without: frozenset[str] = frozenset(),
    entries: int = MOST_ENTRIES,
    on_cut: Callable[[], None] = lambda: None,
) -> Iterator[FoundFile]:
    """Yield what lies below a directory, near things first.

    No symbolic link to a directory is followed, nor one into the code, whose files are not the
    program's own, and nothing hidden is looked at: not more than ``entries`` in all, after which
    ``on_cut`` is called, nor more than `DEEPEST` directories down.
    ``without`` are names in ``root``.
    """
    waiting = deque([(str(root), 0)])
    left = entries
    while waiting:
        directory, level = waiting.popleft()
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    left -= 1
                    if left < 0:
                        return on_cut()
                    name = entry.name
                    if name[0] == "." or name in _LEFT_OUT or (not level and name in without):
                        continue
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_directory and level < DEEPEST:
                        waiting.append((entry.path, level + 1))
                    if (one := _look_at(entry, is_directory)) is not None:
                        yield one
        except OSError:
            continue


def _look_at(entry: os.DirEntry[str], is_directory: bool) -> FoundFile | None:
    try:
        if entry.is_symlink() and leads_to_code(entry.path):
            return None
        facts = entry.stat()
    except OSError:
        return None
    if not is_directory and not stat.S_ISREG(facts.st_mode):
        return None
    path = Path(entry.path)
    return FoundFile(path, facts.st_size, facts.st_mtime, facts.st_ino, is_directory)


def found_at(path: Path) -> FoundFile:
    """Return the file or directory at a path; raise OSError if there is none."""
    facts = path.stat()
    is_directory = stat.S_ISDIR(facts.st_mode)
    return FoundFile(path, facts.st_size, facts.st_mtime, facts.st_ino, is_directory)


def split(pattern: str, directory: Path) -> tuple[Path, str]:
    """Split a glob, relative to a directory, into the directory to search and a glob below it."""
    parts = Path(pattern).parts
    magic = (at for at, part in enumerate(parts) if _MAGIC.search(part))
    fixed = max(0, next(magic, len(parts) - 1))
    return directory.joinpath(*parts[:fixed]), "/".join(parts[fixed:])


def matcher(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a glob, in which ``**`` stands for any directories."""
    *above, last = pattern.split("/")
    text = "".join("(?:[^/]+/)*" if part == "**" else f"{_segment(part)}/" for part in above)
    return re.compile(text + (".*" if last == "**" else _segment(last)))


def _segment(part: str) -> str:
    text = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
    return text.replace(".*", "[^/]*")


def walk(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through directories that are neither hidden nor links."""
    for place, directories, names in itertools.islice(os.walk(top), _MOST_DIRECTORIES):
        directories[:] = [name for name in directories if not name.startswith(".")]
        yield place, directories, names
