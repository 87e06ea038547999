"""`dataclass` and its kin for the classes that every process of a job or many commands import.

`dataclasses` imports `inspect` and others, and compiles up to six methods for each class: 25 ms
before an agent does anything, and as much of `plan`. Here all classes share theirs, and
`dataclasses` is imported where somebody asks it about one of them: its `fields`, `replace` and so
on work as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "is_dataclass", "names", "replace"]

_MISSING: Any = type("_MISSING_TYPE", (), {})()

if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:

    class field:
        """What `dataclasses.field` takes of it."""

        def __init__(self, *, default=_MISSING, default_factory=_MISSING, metadata=None):
            self.default, self.default_factory = default, default_factory
            self.metadata = metadata

    def dataclass(cls=None, *, frozen=False, kw_only=False):
        """`dataclasses.dataclass`, with the methods below."""

        def decorate(cls):
            for methods in (_Methods, _FrozenMethods) if frozen else (_Methods,):
                for name in methods.NAMES:
                    if name not in vars(cls):
                        setattr(cls, name, vars(methods)[name])
            defaults = {}
            for base in reversed(cls.__mro__[1:]):
                defaults |= vars(base).get("_shared_defaults", {})
            for name, kind in cls.__annotations__.items():
                if not str(kind).startswith("ClassVar"):
                    defaults[name] = _take_default(cls, name)
            cls._shared_defaults, cls._shared_names = defaults, (*defaults,)
            cls._shared_order = () if kw_only else cls._shared_names
            cls.__dataclass_fields__ = _Fields()
            return cls

        return decorate if cls is None else decorate(cls)

    def asdict(one):
        """`dataclasses.asdict`; what is no container is no copy."""
        if not _is_shared(type(one)):
            import dataclasses

            return dataclasses.asdict(one)
        return {name: _plain(getattr(one, name)) for name in one._shared_names}

    def replace(one, **changes):
        """`dataclasses.replace`, also of an object of other classes."""
        if not _is_shared(type(one)):
            import dataclasses

            return dataclasses.replace(one, **changes)
        return type(one)(**{**dict(zip(one._shared_names, _values(one), strict=True)), **changes})


def names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a class's fields, also of a class of `dataclasses`."""
    if not _is_shared(kind):
        import dataclasses

        return tuple([one.name for one in dataclasses.fields(kind)])
    found: tuple[str, ...] = kind._shared_names
    return found


def is_dataclass(value: object) -> bool:
    """Check as `dataclasses.is_dataclass`, without the fields of these classes."""
    return hasattr(value, "_shared_names") or hasattr(value, "__dataclass_fields__")


def _is_shared(kind: type[Any]) -> bool:
    return "_shared_names" in vars(kind)


def _take_default(cls: type[Any], name: str) -> tuple[Any, Any]:
    """Return a field's default and the function that makes it, and leave the former in the class.

    Either may be missing. Objects of `dataclasses.field` will do.
    """
    given = vars(cls).get(name, _MISSING)
    if type(given).__name__.lower() != "field":
        return given, _MISSING
    if _is_missing(given.default):
        delattr(cls, name)
    else:
        setattr(cls, name, given.default)
    cls._shared_metadata = {**getattr(cls, "_shared_metadata", {}), name: given.metadata}
    return given.default, given.default_factory


def _is_missing(value: object) -> bool:
    return type(value).__name__ == "_MISSING_TYPE"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return asdict(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        inner = map(_plain, value)
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value


def _values(one: Any) -> tuple[Any, ...]:
    return tuple([getattr(one, name) for name in one._shared_names])


class _Fields:
    """``__dataclass_fields__``, made when it is first asked for."""

    def __get__(self, _one: object, cls: Any) -> Mapping[str, Any]:
        import dataclasses

        given = []
        for kind in reversed(cls.__mro__):
            for name in kind.__annotations__ if "_shared_defaults" in vars(kind) else ():
                if name not in kind._shared_defaults:
                    continue
                default, factory = kind._shared_defaults[name]
                options: dict[str, Any] = {
                    "metadata": getattr(kind, "_shared_metadata", {}).get(name)
                }
                options |= {} if _is_missing(default) else {"default": default}
                options |= {} if _is_missing(factory) else {"default_factory": factory}
                own = dataclasses.field(**options, kw_only=name not in cls._shared_order)
                given.append((name, kind.__annotations__[name], own))
        how: dict[str, Any] = dict.fromkeys(("init", "repr", "eq"), False)
        how["frozen"] = cls.__setattr__ is _FrozenMethods.__setattr__
        made: Any = dataclasses.make_dataclass(cls.__name__, given, **how)
        found: Mapping[str, Any] = made.__dataclass_fields__
        # The original looks at both where a class that it makes has this one as its base.
        cls.__dataclass_fields__, cls.__dataclass_params__ = found, made.__dataclass_params__
        return found


class _Methods:
    NAMES = ("__init__", "__eq__", "__repr__")
    _shared_defaults: dict[str, tuple[Any, Any]]
    _shared_names: tuple[str, ...]
    _shared_order: tuple[str, ...]

    def __init__(self, /, *values: Any, **named: Any) -> None:
        order, own = self._shared_order, self.__dict__
        if values and not named and len(values) == len(order):
            own.update(zip(order, values, strict=True))
            return
        if not values and (*named,) == self._shared_names:
            own.update(named)
            return
        kind = type(self).__name__
        if len(values) > len(order):
            raise TypeError(f"{kind} has {len(order)} fields, not {len(values)}")
        if values:
            given = dict(zip(order, values, strict=False))
            if twice := given.keys() & named.keys():
                raise TypeError(f"{kind} is given {', '.join(sorted(twice))} twice")
            named.update(given)
        for name, (default, factory) in self._shared_defaults.items():
            if name in named:
                own[name] = named.pop(name)
            elif not _is_missing(default):
                own[name] = default
            elif not _is_missing(factory):
                own[name] = factory()
            else:
                raise TypeError(f"{kind} is given no {name}")
        if named:
            raise TypeError(f"{kind} has no field {', '.join(named)}")

    def __eq__(self, other: object) -> Any:
        return _values(self) == _values(other) if type(self) is type(other) else NotImplemented

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shared_names)
        return f"{type(self).__qualname__}({shown})"


class _FrozenMethods:
    NAMES = ("__hash__", "__setattr__", "__delattr__")

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, _value: Any) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")
