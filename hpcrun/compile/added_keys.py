"""What installed packages add to the spec: keys, such as ``tracking.aim``, and words of a key."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hpcrun.errors import HpcrunError
from hpcrun.extensions import FRAMEWORKS, READERS, RUNTIMES, TRACKERS, Registry
from hpcrun.state.environment.environment_block import Container
from hpcrun.state.spec.experiment import Spec, Tracking
from hpcrun.state.spec.run_blocks import Progress

# A block -> the kind of entry of which each adds a key by its own name.
_ADDED: dict[type, Registry[Any]] = {Tracking: TRACKERS}
# A key -> the kind of entry whose names are words of it, beside those of its type.
_WORDS: dict[tuple[type, str], Registry[Any]] = {
    (Container, "runtime"): RUNTIMES,
    (Spec, "framework"): FRAMEWORKS,
    (Progress, "source"): READERS,
}
_PLAIN = (str, int, float, bool, Any)


def names(block: type) -> list[str]:
    """Return the names of the keys that installed packages add to a block."""
    kind = _ADDED.get(block)
    return [] if kind is None else [name for name in kind.names if name not in kind.own]


def annotation(block: type, name: str) -> Any | None:
    """Return the type of a key that a package adds to a block; None if none adds it.

    Raise HpcrunError if the package's entry cannot be loaded, or asks for what no spec has.
    """
    if name not in names(block):
        return None
    kind = _ADDED[block]
    settings = getattr(kind.load(name), "Settings", dict[str, Any])
    if wrong := list(problems(settings)):
        raise HpcrunError(
            f"the Settings of the {kind.one} {name!r} of the package {kind.package(name)} cannot "
            f"be a block of the spec: {'; '.join(wrong)}",
            hint="upgrade or uninstall it; its authors find what Settings may be in "
            "docs/extending.md",
        )
    return settings | None


def words(accepted: tuple[str, ...]) -> list[str]:
    """Return the words that packages add to those of a ``Literal``."""
    kind = _kind_of(accepted)
    known = () if kind is None else (*accepted, *kind.own)
    return [] if kind is None else [name for name in kind.names if name not in known]


def check_word(accepted: tuple[str, ...], word: str) -> None:
    """Raise HpcrunError if the entry of a word that a package adds cannot be loaded."""
    kind = _kind_of(accepted)
    if kind is not None:
        kind.load(word)


@functools.cache
def _kind_of(accepted: tuple[str, ...]) -> Registry[Any] | None:
    for (block, name), kind in _WORDS.items():
        annotation = get_type_hints(block)[name]
        if accepted in map(get_args, (annotation, *get_args(annotation))):
            return kind
    return None


def problems(settings: Any) -> Iterator[str]:
    """Yield why a class, or ``dict[str, Any]``, cannot be the type of a block."""
    if settings == dict[str, Any]:
        return
    if not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
        yield f"{settings!r} is no dataclass"
        return
    for one in dataclasses.fields(settings):
        if one.default is one.default_factory is dataclasses.MISSING:
            yield f"{one.name} has no default"
    try:
        hints = get_type_hints(settings)
    except (NameError, TypeError) as error:
        yield f"its annotations cannot be read: {error}"
        return
    for name, found in hints.items():
        if not _is_checkable(found):
            yield f"{name}: a spec has no value of the type {found}"


def _is_checkable(found: Any) -> bool:
    """Check whether `hpcrun.compile.spec.schema.SchemaChecker` knows a type."""
    origin, inside = get_origin(found), get_args(found)
    if found in _PLAIN:
        return True
    if origin in (Union, types.UnionType):
        options = [one for one in inside if one is not types.NoneType]
        return len(options) == 1 and _is_checkable(options[0])
    if origin is Literal:
        return all(isinstance(word, str) for word in inside)
    if origin is list:
        return _is_checkable(inside[0])
    return origin is dict and inside[0] is str and _is_checkable(inside[1])
