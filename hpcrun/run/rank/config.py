"""The read-only configuration of ``session.config``, by attribute or by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any


class Config(Mapping[str, Any]):
    """A read-only mapping of plain data whose keys are also attributes, nested ones too.

    ``path`` is the full key of this mapping, for messages.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "config") -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_path", path)

    def __getitem__(self, key: str) -> Any:
        value = self._data[key]
        return Config(value, f"{self._path}.{key}") if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._data:
            close = get_close_matches(name, [str(key) for key in self._data], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            has = ", ".join(map(str, self._data)) or "nothing"
            raise AttributeError(f"{self._path} has no key {name!r}{hint} (it has {has})")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"{self._path}.{name}: the configuration is read-only")

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Config({self._data!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (self._data, self._path)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data."""
        return dict(self._data)
