"""The decorator of a spec's blocks: dataclasses that cost little to import.

`dataclasses.dataclass` compiles an ``__init__``, a ``__repr__`` and an ``__eq__`` for each class,
most of what every rank and every command spends on reading a spec. Here all blocks share theirs.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from hpcrun import feature
from hpcrun.extensions import attribute_at

__all__ = ["spec_dataclass", "with_features"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as spec_dataclass
else:

    def spec_dataclass(cls):
        """``cls`` as a dataclass, with the methods below."""
        cls.__init__, cls.__eq__, cls.__repr__ = _init, _eq, _repr
        return dataclass(init=False, repr=False, eq=False)(cls)


def with_features(cls: type[T]) -> type[T]:
    """Add the block of each feature to a class, behind the key that it names."""
    annotations = [*cls.__annotations__.items()]
    for name in feature.blocks():
        one = feature.every()[name]
        block = attribute_at(one.block)
        keys = [key for key, _ in annotations]
        annotations.insert(keys.index(one.after) + 1, (name, block))
        setattr(cls, name, field(default_factory=block, metadata={"about": one.about}))
    cls.__annotations__ = dict(annotations)
    return cls


def _init(self: Any, *values: Any, **named: Any) -> None:
    known = fields(self)
    if len(values) > len(known):
        raise TypeError(f"{type(self).__name__} has {len(known)} fields, not {len(values)}")
    given = {**dict(zip((one.name for one in known), values, strict=False)), **named}
    for one in known:
        if one.name in given:
            value = given.pop(one.name)
        elif one.default is not MISSING:
            value = one.default
        else:
            assert one.default_factory is not MISSING
            value = one.default_factory()
        setattr(self, one.name, value)
    if given:
        raise TypeError(f"{type(self).__name__} has no field {', '.join(given)}")


def _eq(self: Any, other: object) -> Any:
    return vars(self) == vars(other) if type(self) is type(other) else NotImplemented


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
    return f"{type(self).__name__}({shown})"
