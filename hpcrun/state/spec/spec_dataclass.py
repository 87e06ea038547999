"""The decorator of a spec's blocks: dataclasses that cost little to import.

`dataclasses.dataclass` compiles an ``__init__``, a ``__repr__`` and an ``__eq__`` for each class,
most of what every rank and every command spends on reading a spec. Here all blocks share theirs.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

__all__ = ["spec_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as spec_dataclass
else:

    def spec_dataclass(cls):
        """``cls`` as a dataclass, with the methods below."""
        cls.__init__, cls.__eq__, cls.__repr__ = _init, _eq, _repr
        return dataclass(init=False, repr=False, eq=False)(cls)


def _init(self: Any, *values: Any, **named: Any) -> None:
    known = fields(self)
    if len(values) > len(known):
        raise TypeError(f"{type(self).__name__} has {len(known)} fields, not {len(values)}")
    given = {**dict(zip((field.name for field in known), values, strict=False)), **named}
    for field in known:
        if field.name in given:
            value = given.pop(field.name)
        elif field.default is not MISSING:
            value = field.default
        else:
            assert field.default_factory is not MISSING
            value = field.default_factory()
        setattr(self, field.name, value)
    if given:
        raise TypeError(f"{type(self).__name__} has no field {', '.join(given)}")


def _eq(self: Any, other: object) -> Any:
    return vars(self) == vars(other) if type(self) is type(other) else NotImplemented


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
    return f"{type(self).__name__}({shown})"
