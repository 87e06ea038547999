"""Writes a spec as YAML, in which every text comes back as it was."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcrun.compile.target.sbatch_request import UNKNOWN
from hpcrun.text import visible

_PLAIN = re.compile(r"-{0,2}[A-Za-z_./][\w./=+@%-]*(?: [A-Za-z][\w./-]*)*", re.ASCII)
_WIDTH = 96


@dataclass(frozen=True)
class TypedSpec:
    """A spec that was made of a command line."""

    text: str
    path: Path
    """Where it would lie: paths in it start there, and no such file is written."""
    values: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Dotted key -> value, as `SpecText` has them."""

    def __str__(self) -> str:
        return "the typed spec"


class _Dumper(yaml.SafeDumper):
    """Quotes all texts that somebody might read as something else."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def inline(value: Any) -> str:
    """Return a value in one line, as YAML reads it back."""
    if value == UNKNOWN:
        return UNKNOWN
    is_flow = isinstance(value, (dict, list))
    shown = yaml.dump(value, Dumper=_Dumper, default_flow_style=is_flow, width=1 << 30)
    return shown.removesuffix("...\n").strip()


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
        blocks: dict[str, list[str]] = {}
        for full in dict.fromkeys((*self.values, *self.asks)):
            blocks.setdefault(full.partition(".")[0], []).append(full)
        for above, keys in blocks.items():
            yield from self._one(above, above, "") if keys == [above] else self._block(above, keys)

    def _block(self, above: str, keys: list[str]) -> Iterator[str]:
        values = [full for full in keys if full in self.values]
        yield f"{above}:" if values else f"# {above}:"
        sub = ""
        for full in keys:
            *middle, last = full.split(".", 2)[1:] or [full]
            if middle and middle[0] != sub and values:
                yield f"  {middle[0]}:"
            sub = middle[0] if middle else ""
            yield from self._one(full, last, "    " if middle else "  ")

    def _one(self, full: str, name: str, before: str) -> Iterator[str]:
        """Yield what is asked at a key, and its value."""
        if full in self.asks:
            is_there = "" if full in self.values else f"{full}: "
            text = f"hpcrun asks: {is_there}{visible(self.asks[full])}"
            for line in textwrap.wrap(text, _WIDTH - len(before) - 2, break_long_words=False):
                yield f"{before}# {line}"
        if full not in self.values:
            return
        value = self.values[full]
        comment = f"   # {visible(self.comments[full])}" if full in self.comments else ""
        shown = f"{before}{inline(name)}: {inline(value)}{comment}"
        if len(shown) <= _WIDTH or not isinstance(value, list) or name == "grid":
            yield shown
            return
        yield f"{before}{inline(name)}:{comment}"
        yield from (f"{before}  - {inline(one)}" for one in value)
