"""Plain data that remembers, for every key, the file and line it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, ...]

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Mark:
    """Where a value was written.

    Attributes
    ----------
    file
        The file as the user named it, or ``command line``.
    line
        1-based, where known.
    directory
        What relative paths in the value are relative to.
    text
        The scalar as it was written, where it was one.
    """

    file: str
    line: int | None
    directory: Path
    text: str | None = None


@dataclass
class Tree:
    """Nested mappings and lists with a mark for every key; list items are keyed by their index."""

    data: dict[str, Any]
    marks: dict[Key, Mark] = field(default_factory=dict)

    def mark(self, key: Key) -> Mark:
        """Where ``key``, or the nearest key around it, was written."""
        for length in range(len(key), -1, -1):
            found = self.marks.get(key[:length])
            if found:
                return found
        return Mark("defaults", None, Path())

    def over(self, base: Tree) -> Tree:
        """A new tree of ``base`` with this one over it: mappings merge, all else replaces."""
        replaced: list[Key] = []
        data = _merge(base.data, self.data, (), replaced)
        marks = {
            key: mark
            for key, mark in base.marks.items()
            if not any(key[: len(gone)] == gone for gone in replaced)
        }
        return Tree(data, {**marks, **self.marks})

    def below(self, key: Key) -> Tree:
        """The same tree, moved below ``key``."""
        return Tree(nest(key, self.data), {key + own: mark for own, mark in self.marks.items()})


def dotted(key: Key) -> str:
    """``resources.nodes``."""
    return ".".join(key)


def copy(value: Any) -> Any:
    """A deep copy of plain data."""
    if isinstance(value, dict):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy(item) for item in value]
    return value


def merge(base: Any, top: Any) -> Any:
    """``top`` over ``base``, as new plain data: mappings merge, all else replaces."""
    return _merge(base, top, (), [])


def nest(key: Key, value: Any) -> dict[str, Any]:
    """Mappings with ``value`` at ``key`` and nothing else."""
    for part in reversed(key):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def get_at(data: Any, key: Key, default: Any = None) -> Any:
    """The value at ``key``, or ``default`` when there is no such key."""
    for part in key:
        if not isinstance(data, dict) or part not in data:
            return default
        data = data[part]
    return data


def has(data: Any, key: Key) -> bool:
    """Whether ``key`` exists, its value null or not."""
    missing = object()
    return get_at(data, key, missing) is not missing


def keys(data: Any, prefix: Key = ()) -> list[Key]:
    """Every key of nested mappings, parents before children."""
    found: list[Key] = []
    if isinstance(data, dict):
        for name, value in data.items():
            found += [(*prefix, name), *keys(value, (*prefix, name))]
    return found


def _merge(base: Any, top: Any, key: Key, replaced: list[Key]) -> Any:
    if isinstance(base, dict) and isinstance(top, dict):
        merged = {name: copy(value) for name, value in base.items() if name not in top}
        ordered: dict[str, Any] = {}
        for name in [*base, *(name for name in top if name not in base)]:
            if name not in top:
                ordered[name] = merged[name]
            elif name in base:
                ordered[name] = _merge(base[name], top[name], (*key, name), replaced)
            else:
                ordered[name] = copy(top[name])
        return ordered
    if key:
        replaced.append(key)
    return copy(top)
