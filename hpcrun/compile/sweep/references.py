"""The graph of interpolations: which values change with which, and what they become."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcrun.compile.source.marked_tree import Key, get_at

_TOKEN = re.compile(r"\$\{([^${}]*)\}")
_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)")
_WORD = re.compile(r"[\w-]+")
_CONSTANT = ("hpcrun:", "oc.env:")

CANNOT_SAY = object()


def interpolations(value: Any, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Where there are strings with interpolations, and the strings."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from interpolations(item, (*key, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from interpolations(item, (*key, str(index)))
    elif isinstance(value, str) and "${" in value:
        yield key, value


def overlap(one: Key, other: Key) -> bool:
    """Whether one key is the other, or around it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def is_inside(key: Key, around: Key) -> bool:
    """Whether a key is below another."""
    return len(around) < len(key) and key[: len(around)] == around


def may_name(text: str, keys: Collection[Key]) -> bool:
    """Whether a text that is no `Node` may refer to one of the keys: it has a part of its name."""
    parts = {part for key in keys for part in key}
    nested = re.search(r"\$\{[^}]*\$\{", text) is not None
    return nested or not parts.isdisjoint(_WORD.findall(text))


class Node:
    """A string of the spec with references to other keys.

    Attributes
    ----------
    references
        The keys, from the top.
    """

    def __init__(self, key: Key, parts: Sequence[str | Key]) -> None:
        self.key, self._parts = key, parts
        self.references = [part for part in parts if not isinstance(part, str)]

    @classmethod
    def of(cls, key: Key, text: str) -> Node | None:
        """None for a text that holds more than references and what no key changes."""
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

    def refers_to(self, keys: Collection[Key]) -> bool:
        """Whether it looks at one of the keys, something inside it, or something around it."""
        return any(overlap(reference, key) for reference in self.references for key in keys)

    def value(self, data: dict[str, Any]) -> Any:
        """What it is, where all that it refers to is in ``data``; or ``CANNOT_SAY``."""
        found = [
            part if isinstance(part, str) else get_at(data, part, CANNOT_SAY)
            for part in self._parts
        ]
        if len(found) == 1:
            return found[0]
        if any(isinstance(one, (dict, list)) or one is CANNOT_SAY for one in found):
            return CANNOT_SAY
        return "".join(map(str, found))


def dependents(nodes: Collection[Node], keys: Collection[Key]) -> list[Node] | None:
    """The nodes that change with the keys, each after those it refers to; None for a circle."""
    changing = {*keys}
    found: dict[Key, Node] = {}
    while more := [n for n in nodes if n.key not in found and n.refers_to(changing)]:
        found.update((node.key, node) for node in more)
        changing.update(node.key for node in more)
    ordered = []
    while found:
        ready = [node for node in found.values() if not node.refers_to(found)]
        if not ready:
            return None
        for node in ready:
            ordered.append(node)
            del found[node.key]
    return ordered


def _part(text: str, inner: str, key: Key) -> str | Key | None:
    if inner.startswith(_CONSTANT):
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
