"""`dataclass` for the classes that every process of a job imports.

`dataclasses.dataclass` compiles up to six methods for each class, 0.4 ms: a quarter of the
processor time in which an agent began. Here all classes share theirs. To make an object takes twice
as long, so classes of which there may be one for each run of a large experiment keep the original.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, *, frozen=False, kw_only=False):
        """`dataclasses.dataclass`, with the methods below and no subclasses by the original."""

        def decorate(cls):
            for methods in (_Methods, _FrozenMethods) if frozen else (_Methods,):
                for name in methods.NAMES:
                    if name not in vars(cls):
                        setattr(cls, name, vars(methods)[name])
            # The original would make one of the signature.
            cls.__doc__ = cls.__doc__ or cls.__name__
            options = {"init": False, "repr": False, "eq": False, "kw_only": kw_only}
            cls = dataclasses.dataclass(**options)(cls)
            fields = dataclasses.fields(cls)
            cls._shared_defaults = {one.name: _default(one) for one in fields}
            cls._shared_order = tuple(one.name for one in fields if not one.kw_only)
            return cls

        return decorate if cls is None else decorate(cls)


def _default(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """Return a field's default, and whether that is a function which makes it."""
    if field.default_factory is not MISSING:
        return field.default_factory, True
    return field.default, False


def _values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in one._shared_defaults)


class _Methods:
    NAMES = ("__init__", "__eq__", "__repr__")
    _shared_defaults: dict[str, tuple[Any, bool]]
    _shared_order: tuple[str, ...]

    def __init__(self, /, *values: Any, **named: Any) -> None:
        kind, order, own = type(self).__name__, self._shared_order, vars(self)
        if len(values) > len(order):
            raise TypeError(f"{kind} has {len(order)} fields, not {len(values)}")
        if values:
            given = dict(zip(order, values, strict=False))
            if twice := given.keys() & named.keys():
                raise TypeError(f"{kind} is given {', '.join(sorted(twice))} twice")
            named.update(given)
        for name, (default, is_made) in self._shared_defaults.items():
            if name in named:
                own[name] = named.pop(name)
            elif default is MISSING:
                raise TypeError(f"{kind} is given no {name}")
            else:
                own[name] = default() if is_made else default
        if named:
            raise TypeError(f"{kind} has no field {', '.join(named)}")

    def __eq__(self, other: object) -> Any:
        return _values(self) == _values(other) if type(self) is type(other) else NotImplemented

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shared_defaults)
        return f"{type(self).__qualname__}({shown})"


class _FrozenMethods:
    NAMES = ("__hash__", "__setattr__", "__delattr__")

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, _value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
