"""Writes a spec as YAML with comments, in which every text comes back as it was."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcrun.text import visible

_PLAIN = re.compile(
    r"[A-Za-z_./~][\w./~+@%=,-]*(?: [\w./~+@%=(-][\w./~+@%=(),-]*)*|[1-9]\d*[KMGT]B?", re.ASCII
)
_NOT_TEXT = re.compile(
    r"true|false|yes|no|on|off|y|n|null|none|nan|\.nan|[-+]?\.?inf|~|\.\d.*|\d[\d_.:eE+-]*|=|<<",
    re.IGNORECASE,
)
_WIDTH = 96


def scalar(value: Any) -> str:
    """Return a scalar as YAML reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if text == "???" or (_PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text)):
        return text
    if visible(text) == text and "\n" not in text and "\t" not in text and "\\" not in text:
        return '"' + text + '"' if '"' not in text else "'" + text.replace("'", "''") + "'"
    return _double(text)


def _double(text: str) -> str:
    """Return a text in double quotes, with everything that acts on a terminal escaped."""
    shown = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + "".join(_escaped(one) for one in shown) + '"'


def _escaped(one: str) -> str:
    if visible(one) == one:
        return one
    code = ord(one)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def key(name: str) -> str:
    """Return a key as YAML reads it back."""
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", name) and not _NOT_TEXT.fullmatch(name)
    return name if plain else _double(name)


def inline(value: Any) -> str:
    """Return a value in one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key(str(name))}: {_in_flow(one)}" for name, one in value.items())
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_in_flow, value))}]"
    return scalar(value)


def _in_flow(value: Any) -> str:
    """Return a value in brackets, where commas and braces end a plain text."""
    shown = inline(value)
    is_plain = isinstance(value, str) and shown[:1] not in "'\""
    return f"'{shown}'" if is_plain and re.search(r"[,\[\]{}#?]|: ", shown) else shown


@dataclass
class SpecText:
    """A spec that is to be written."""

    values: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value, in the order of the spec."""
    comments: dict[str, str] = field(default_factory=dict)
    """Dotted key -> the comment behind it."""
    asks: dict[str, str] = field(default_factory=dict)
    """Dotted key -> what is asked there; the key may have no value."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of its YAML."""
        blocks: dict[str, dict[str, Any]] = {}
        for full in [*self.values, *self.asks]:
            above, _, _ = full.partition(".")
            blocks.setdefault(above, {})
            if full in self.values:
                blocks[above][full] = self.values[full]
        for above in blocks:
            yield from self._block(above, blocks[above])

    def _block(self, above: str, values: dict[str, Any]) -> Iterator[str]:
        asked = [full for full in self.asks if full.partition(".")[0] == above]
        if above in values or (not values and asked == [above]):
            yield from self._one(above, above, "")
            return
        yield f"{above}:" if values else f"# {above}:"
        sub = ""
        for full in [*values, *(one for one in asked if one not in values)]:
            _, *middle, last = full.split(".", 2)
            if middle and middle[0] != sub and values:
                yield f"  {middle[0]}:"
            sub = middle[0] if middle else ""
            yield from self._one(full, last, "    " if middle else "  ")

    def _one(self, full: str, name: str, before: str) -> Iterator[str]:
        """Yield what is asked at a key, and its value."""
        if full in self.asks:
            is_there = "" if full in self.values else f"{full}: "
            text = f"hpcrun asks: {is_there}{visible(self.asks[full])}"
            yield from _comment(text, before)
        if full not in self.values:
            return
        value = self.values[full]
        comment = f"   # {visible(self.comments[full])}" if full in self.comments else ""
        shown = f"{before}{key(name)}: {inline(value)}{comment}"
        if len(shown) <= _WIDTH or not isinstance(value, list) or name == "grid":
            yield shown
            return
        yield f"{before}{key(name)}:{comment}"
        yield from (f"{before}  - {_in_flow(one)}" for one in value)


def _comment(text: str, before: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - len(before) - 2, break_long_words=False):
        yield f"{before}# {line}"
