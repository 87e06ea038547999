"""The decorator of a spec's blocks, and the keys that features add to the spec."""

from __future__ import annotations

from typing import TypeVar

from hpcrun import feature
from hpcrun.extensions import attribute_at
from hpcrun.shared_dataclass import dataclass as spec_dataclass
from hpcrun.shared_dataclass import field

__all__ = ["spec_dataclass", "with_features"]

T = TypeVar("T")


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
