"""The graph of interpolations: which values change with a key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from hpcrun.compile.source.marked_tree import Key, get_at, leaves

_TOKEN = re.compile(r"\$\{([^${}]*)\}")
_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)")
_WORD = re.compile(r"[\w-]+")
_CONSTANT = ("hpcrun:", "oc.env:")

# The value of an interpolation that only OmegaConf can resolve.
UNKNOWN = object()


def interpolations(value: Any, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield every string that holds an interpolation, with its key."""
    for at, leaf in leaves(value, key):
        if isinstance(leaf, str) and "${" in leaf:
            yield at, leaf


def referred(texts: Iterable[tuple[Key, str]], block: str) -> frozenset[Key]:
    """Return the keys of a block that texts refer to, those at their own keys."""
    found: set[Key] = set()
    for key, text in texts:
        node = Interpolation.parse(key, text)
        named = [tuple(name.split(".")) for name in re.findall(rf"\b{block}(?:\.[\w-]+)+", text)]
        found.update(named if node is None else node.references)
    return frozenset(key for key in found if key[0] == block and len(key) > 1)


def has_interpolation(value: Any) -> bool:
    """Return whether a value is or holds a string with an interpolation."""
    if isinstance(value, str):
        return "${" in value
    return any(True for _ in interpolations(value))


def overlap(one: Key, other: Key) -> bool:
    """Return whether one key is the other, or around it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def may_name(text: str, keys: Collection[Key]) -> bool:
    """Return whether a text that cannot be parsed may refer to a key: it holds a part of one."""
    parts = {part for key in keys for part in key}
    nested = re.search(r"\$\{[^}]*\$\{", text) is not None
    return nested or not parts.isdisjoint(_WORD.findall(text))


class KeySet:
    """Keys among which one is found that overlaps with another, however many there are."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {*keys}
        self._around = {key[:length] for key in self._keys for length in range(len(key))}

    def overlap(self, key: Key) -> bool:
        """Return whether one of the keys is this one, inside it or around it."""
        parts = (key[:length] for length in range(len(key) + 1))
        return key in self._around or not self._keys.isdisjoint(parts)


class Interpolation:
    """A string of the spec that refers to other keys; ``references`` are their full keys."""

    def __init__(self, key: Key, parts: Sequence[str | Key]) -> None:
        self.key, self._parts = key, parts
        self.references = [part for part in parts if not isinstance(part, str)]

    @classmethod
    def parse(cls, key: Key, text: str) -> Interpolation | None:
        """Parse a text; None if it holds more than references and constants."""
        parts: list[str | Key] = []
        end = 0
        for token in _TOKEN.finditer(text):
            parts += [text[end : token.start()]] if token.start() > end else []
            end = token.end()
            part = _part(token[0], token[1].strip(), key)
            if part is None:
                return None
            parts.append(part)
        parts += [text[end:]] if text[end:] else []
        if "\\" in text or text.count("${") != len(_TOKEN.findall(text)):
            return None
        return cls(key, parts)

    @classmethod
    def from_data(cls, data: list[Any]) -> Interpolation:
        """Return the interpolation that `to_data` wrote as plain data."""
        key, parts = data
        return cls(tuple(key), [part if isinstance(part, str) else tuple(part) for part in parts])

    def to_data(self) -> list[Any]:
        """Return plain data."""
        return [self.key, self._parts]

    def refers_to(self, keys: KeySet) -> bool:
        """Return whether it refers to one of the keys, or to a key inside or around it."""
        return any(map(keys.overlap, self.references))

    def value(self, data: dict[str, Any]) -> Any:
        """Return its value, if all that it refers to is in ``data``; otherwise ``UNKNOWN``."""
        parts = self._parts
        found = [one if isinstance(one, str) else get_at(data, one, UNKNOWN) for one in parts]
        if len(found) == 1:
            return found[0]
        if any(isinstance(one, (dict, list)) or one is UNKNOWN for one in found):
            return UNKNOWN
        return "".join(map(str, found))


def dependents(
    nodes: Collection[Interpolation], keys: Collection[Key]
) -> list[Interpolation] | None:
    """List what changes with the keys, each after those it refers to; None for a circle."""
    changing = {*keys}
    found: dict[Key, Interpolation] = {}
    while more := _referring([n for n in nodes if n.key not in found], changing):
        found.update((node.key, node) for node in more)
        changing.update(node.key for node in more)
    ordered = []
    while found:
        waiting = {node.key for node in _referring(found.values(), found)}
        ready = [node for node in found.values() if node.key not in waiting]
        if not ready:
            return None
        for node in ready:
            ordered.append(node)
            del found[node.key]
    return ordered


def _referring(nodes: Iterable[Interpolation], keys: Iterable[Key]) -> list[Interpolation]:
    known = KeySet(keys)
    return [node for node in nodes if node.refers_to(known)]


def _part(text: str, inner: str, key: Key) -> str | Key | None:
    if inner.startswith(_CONSTANT):
        # Not for jobs, whose Python need not have it.
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            value = OmegaConf.create({"value": text})["value"]
        except OmegaConfBaseException:
            return None
        return value if isinstance(value, str) else None
    reference = _REFERENCE.fullmatch(inner)
    if reference is None:
        return None
    dots, name = reference.groups()
    if len(dots) > len(key):
        return None
    around = key[: len(key) - len(dots)] if dots else ()
    return (*around, *name.split("."))
