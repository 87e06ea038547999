"""Limits on the files of a spec: far above what people write, and checked before anything is built.

A text is gone through in its parser's order, with aliases counted as what they stand for, so that a
file costs no more than the bytes that it has.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import yaml

from hpcrun.text import size

LARGEST_FILE = 8_000_000
# Of all files of a spec together.
MOST_FILES = 1_000
MOST_VALUES = 100_000
MOST_TEXT = 16_000_000
DEEPEST = 24
MOST_BITS = 256
LONGEST_NUMBER = 300

_IN_THE_PROGRAM = "keep such data in a file that the program reads"
_TOKEN = re.compile(
    r'"(?:[^"\\]+|\\.)*"?|(?P<open>[\[{])|(?P<close>[\]}])|(?P<next>[,:])'
    r"|(?P<number>[-+]?[0-9][-+0-9.eE]*)",
    re.DOTALL,
)


class TooMuch(Exception):
    """A limit was passed in a line of a file."""

    def __init__(self, message: str, line: int, hint: str | None = _IN_THE_PROGRAM) -> None:
        super().__init__(message)
        self.message, self.line, self.hint = message, line, hint


class Extent:
    """A count of what the files of a spec hold, of those that were read so far."""

    def __init__(self) -> None:
        self.files = self.values = self.characters = 0
        self.copied = 0

    def open_file(self) -> None:
        """Count a file; raise TooMuch if there are too many."""
        self.files += 1
        if self.files > MOST_FILES:
            found = f"more than {MOST_FILES:,} files, each as often as it is read"
            raise TooMuch(f"the spec is made of {found}", 1, "extend fewer files, each once")

    def add(self, values: int, characters: int, line: int) -> None:
        """Count values and characters; raise TooMuch if there are too many."""
        self.values += values
        self.characters += characters
        counted = "in all files of the spec, aliases counted as what they stand for"
        if self.values > MOST_VALUES:
            hint = f"{_IN_THE_PROGRAM}; a sweep's grid makes points without a list of them"
            raise TooMuch(f"more than {MOST_VALUES:,} keys and values {counted}", line, hint)
        if self.characters > MOST_TEXT:
            raise TooMuch(f"more than {size(MOST_TEXT)} of text {counted}", line)


class _Collection:
    """A mapping or a list that the parser is in."""

    def __init__(self, anchor: str | None, extent: Extent) -> None:
        self.anchor, self.height = anchor, 0
        self.values, self.characters = extent.values, extent.characters


def check_yaml(text: str, loader: Any, extent: Extent) -> None:
    """Count what a YAML text stands for; raise TooMuch, or yaml.YAMLError where it is no YAML."""
    extent.open_file()
    around: list[_Collection] = []
    # Values, characters and height of what an anchor names.
    anchors: dict[str, tuple[int, int, int]] = defaultdict(lambda: (1, 0, 0))
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1  # type: ignore[union-attr]
        found = (1, 0, 0)
        if isinstance(event, yaml.CollectionStartEvent):
            extent.add(1, 0, line)
            around.append(_Collection(event.anchor, extent))
            _check_depth(len(around), line)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            inner = around.pop()
            values = 1 + extent.values - inner.values
            found = (values, extent.characters - inner.characters, inner.height + 1)
            if inner.anchor:
                anchors[inner.anchor] = found
        elif isinstance(event, yaml.ScalarEvent):
            found = (1, len(event.value), 0)
            extent.add(*found[:2], line)
            if event.anchor:
                anchors[event.anchor] = found
        elif isinstance(event, yaml.AliasEvent):
            found = anchors[str(event.anchor)]
            extent.add(*found[:2], line)
            _check_depth(len(around) + found[2], line)
        if around:
            around[-1].height = max(around[-1].height, found[2])


def check_json(text: str, extent: Extent) -> None:
    """Count what a JSON text holds, whether or not it is valid; raise TooMuch."""
    extent.open_file()
    extent.add(0, len(text), 1)
    depth = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind is None:
            continue
        try:
            if kind == "number":
                check_number(token[0], 1)
                continue
            extent.add(kind != "close", 0, 1)
            depth += {"open": 1, "close": -1, "next": 0}[kind]
            _check_depth(depth, 1)
        except TooMuch as error:
            error.line = text.count("\n", 0, token.start()) + 1
            raise


def check_number(text: str, line: int, value: float | None = None) -> None:
    """Raise TooMuch if a number is larger than those that are used, or would take long to read.

    ``value`` is what the text was read as; None for a number of JSON that was not read yet.
    """
    if len(text) <= LONGEST_NUMBER:
        if value is None:
            try:
                value = float(text) if {*text} & {*".eE"} else int(text)
            except ValueError:
                return
        if isinstance(value, int) and value.bit_length() <= MOST_BITS:
            return
        if isinstance(value, float) and (not math.isinf(value) or "inf" in text.lower()):
            return
    shown = text if len(text) <= 40 else f"{text[:20]}… ({len(text):,} characters)"
    found = f"the number {shown} is too large; accepted are {MOST_BITS} bits, or a float's range"
    raise TooMuch(found, line, "quote it if it is text")


def is_deep(key: str) -> bool:
    """Return whether a dotted key names a value deeper than a file may hold one."""
    return key.count(".") >= DEEPEST


def too_deep(line: int) -> TooMuch:
    """Return the error for a text that is nested too deep in a line."""
    return TooMuch(f"mappings and lists are nested more than {DEEPEST} levels deep", line)


def unwritable(text: str) -> str | None:
    """Name a character in a text that no file, script or argument can hold; None without one."""
    if "\0" in text:
        return "a NUL character"
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        return "a byte that is not UTF-8, or half of a surrogate pair"
    return None


def _check_depth(depth: int, line: int) -> None:
    if depth > DEEPEST:
        raise too_deep(line)
