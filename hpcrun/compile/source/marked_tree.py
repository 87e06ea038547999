"""Plain data that remembers, for every key, where it was written, and reports problems there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcrun.compile.source.problems import MOST, MOST_NUMBER, Problems, listing, nearest_file
from hpcrun.errors import Problem
from hpcrun.host import expand_home, is_there
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.text import shortened

Key = tuple[str, ...]

COMMAND_LINE = "command line"
_LONGEST_KEY = 200
# Names of files that are there, in place of one that is not.
_MOST_SIBLINGS = 8


@dataclass(frozen=True)
class SourceMark:
    """The place where a value was written."""

    file: str
    """The file as the user named it, or ``command line``."""
    line: int | None
    """1-based, where known."""
    directory: Path
    """The base directory of relative paths in the value."""
    text: str | None = None
    """The scalar as it was written, if it was a scalar."""

    def path(self, written: str) -> Path:
        """Return the absolute path that a path written here means."""
        return Path(os.path.normpath((self.directory / expand_home(written)).absolute()))


@dataclass
class Tree:
    """Nested mappings and lists with a mark for every key; list items are keyed by their index."""

    data: dict[str, Any]
    marks: dict[Key, SourceMark] = field(default_factory=dict)

    def mark(self, key: Key) -> SourceMark:
        """Return where ``key``, or the nearest key around it, was written."""
        for length in range(len(key), -1, -1):
            found = self.marks.get(key[:length])
            if found:
                return found
        return SourceMark("defaults", None, Path())

    def over(self, base: Tree) -> Tree:
        """Return a tree with this one laid over ``base``: mappings merge, all else replaces.

        What only one of them has is shared with it.
        """
        replaced: set[Key] = set()
        data = _merge(base.data, self.data, (), replaced)
        marks = {
            key: mark
            for key, mark in base.marks.items()
            if not any(key[:length] in replaced for length in range(1, len(key) + 1))
        }
        return Tree(data, {**marks, **self.marks})

    def below(self, key: Key) -> Tree:
        """Return the same tree, moved below ``key``."""
        return Tree(nest(key, self.data), {key + own: mark for own, mark in self.marks.items()})


class Reporter:
    """Adds problems with the values of one tree, each with its key, file and line.

    A key is a tuple, or the dotted text of one whose parts hold no dots, and relative to ``below``.
    """

    def __init__(self, tree: Tree, problems: Problems, below: Key = ()) -> None:
        self.tree, self.problems, self.key = tree, problems, below

    def below(self, key: Key | str) -> Reporter:
        """Return a reporter for keys relative to ``key``."""
        return Reporter(self.tree, self.problems, self._full(key))

    def mark(self, key: Key | str = ()) -> SourceMark:
        """Return where the value at ``key`` was written."""
        return self.tree.mark(self._full(key))

    def at(self, key: Key | str, message: str, hint: str | None = None) -> None:
        """Add a problem with the value at ``key``."""
        self.at_mark(self.mark(key), key, message, hint)

    def at_mark(
        self, mark: SourceMark, key: Key | str, message: str, hint: str | None = None
    ) -> None:
        """Add a problem with the value at ``key``, which ``mark`` says was written elsewhere."""
        full = shortened(dotted(self._full(key)), _LONGEST_KEY)
        hint = shortened(hint) if hint else hint
        self.problems.add(Problem(mark.file, full, shortened(message), hint, mark.line))

    def note(self, key: Key | str, message: str, hint: str | None = None) -> None:
        """Add a message about the value at ``key``, which is no problem; after `MOST`, none."""
        mark, notes = self.mark(key), self.problems.notes
        if len(notes) < MOST:
            full = shortened(dotted(self._full(key)), _LONGEST_KEY)
            notes.append(str(Problem(mark.file, full, shortened(message), hint, mark.line)))

    def note_alone(self, key: str, other: str) -> None:
        """Add that a key, where it is given, does nothing, as ``other`` is not."""
        if self._full(key) in self.tree.marks:
            self.note(key, f"does nothing without {other}")

    def no_file(self, key: Key | str, written: str, path: Path, pattern: str) -> None:
        """Add that ``path`` is missing; the hint is a name like it, or names that are there.

        Only files of the ``pattern`` could have been meant.
        """
        here = Path(os.path.normpath(Path.cwd() / written))
        if self.mark(key).file == COMMAND_LINE and here != path and is_there(here.is_file):
            found = f"there is no file {written!r} in {path.parent}"
            self.at(key, found, f"paths start from the spec's directory; here is {here}")
            return
        near = path.parent.glob(pattern) if is_there(path.parent.is_dir) else ()
        # A file does not mean itself.
        siblings = sorted(one.name for one in near if one.name != Path(self.mark(key).file).name)
        hint = nearest_file(path.name, siblings)
        if hint is None and "yaml" in pattern.replace("*", "a") and not path.suffix:
            hint = f"it is the path of a file, such as {written}.yaml"
        if hint is None and siblings:
            hint = f"there are {listing(siblings, _MOST_SIBLINGS)}"
        self.at(key, f"there is no file {written!r} in {path.parent}", hint)

    def at_least(
        self, key: Key | str, value: int | str | None, least: int, most: int = MOST_NUMBER
    ) -> None:
        """Add a problem if a whole number is below ``least`` or above ``most``.

        Null and a word that the key accepts are fine.
        """
        if not isinstance(value, int):
            return
        if value < least:
            self.at(key, f"found {value}; accepted is a whole number from {least}")
        elif value > most:
            self.at(key, f"found {value}; accepted is a whole number from {least} to {most:,}")

    def _full(self, key: Key | str) -> Key:
        return (*self.key, *(key.split(".") if isinstance(key, str) else key))


def dotted(key: Key) -> str:
    """Join a key: ``resources.nodes``."""
    return ".".join(key)


def nest(key: Key, value: Any) -> dict[str, Any]:
    """Return mappings with ``value`` at ``key`` and nothing else."""
    for part in reversed(key):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def get_at(data: Any, key: Key, default: Any = None) -> Any:
    """Return the value at ``key`` of nested mappings, or ``default`` if there is no such key."""
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return default
        data = data[part]
    return data


def keys(data: Any, prefix: Key = ()) -> Iterator[Key]:
    """Yield every key of nested mappings, parents before children."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield (*prefix, name)
            yield from keys(value, (*prefix, name))


def leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every value that is neither a mapping nor a list, with its key."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*key, str(index)))
    else:
        yield key, value


def map_leaves(change: Callable[[Key, Any], Any], value: Any, key: Key = ()) -> Any:
    """Return a copy in which each of the `leaves` is what ``change`` makes of its key and value."""
    if isinstance(value, dict):
        return {name: map_leaves(change, item, (*key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [map_leaves(change, item, (*key, str(at))) for at, item in enumerate(value)]
    return change(key, value)


def _merge(base: Any, top: Any, key: Key, replaced: set[Key]) -> Any:
    if isinstance(base, dict) and isinstance(top, dict):
        merged = dict(base)
        for name, value in top.items():
            inside = (*key, name)
            merged[name] = _merge(base[name], value, inside, replaced) if name in base else value
        return merged
    if key:
        replaced.add(key)
    return top
