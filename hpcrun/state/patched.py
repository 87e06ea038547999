"""Nested plain data with replaced values, which shares all else."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any


class Patched:
    """A copy of nested mappings and lists; containers of a replaced value are copied once.

    ``data`` is the copy, and ``copied`` the number of values in the containers that are its own.
    All that was not replaced is the original's: do not change it.
    """

    def __init__(self, original: dict[str, Any]) -> None:
        self.data = dict(original)
        self.copied = len(original)
        self._own: dict[tuple[str, ...], Any] = {(): self.data}

    def put(self, path: Sequence[str], value: Any) -> None:
        """Replace the value at a path of keys and of indices in decimal.

        Missing mappings on the way are made.
        """
        path = tuple(path)
        for length in range(1, len(path)):
            if path[:length] not in self._own:
                around = self._own[path[: length - 1]]
                place = _place(around, path[length - 1])
                inner = around.get(place) if isinstance(around, dict) else around[place]
                around[place] = copy(inner) if isinstance(inner, (dict, list)) else {}
                self.copied += len(around[place])
                self._own[path[:length]] = around[place]
        around = self._own[path[:-1]]
        around[_place(around, path[-1])] = value


def at(data: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys and of indices in decimal.

    Raises LookupError if there is no such value.
    """
    for part in path:
        data = data[_place(data, part)]
    return data


def _place(around: Any, part: str) -> Any:
    return int(part) if isinstance(around, list) else part
