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


def check_yaml(text: str, loader: Any, extent: Extent) -> None:
    """Count what a YAML text stands for; raise TooMuch, or yaml.YAMLError where it is no YAML."""
    extent.open_file()
    # Values, characters and height of what an anchor names.
    anchors: dict[str, tuple[int, int, int]] = defaultdict(lambda: (1, 0, 0))

    def height_of(event: Any, depth: int) -> int:
        """Count what begins with an event, inside of so many collections; return its height."""
        line, height = event.start_mark.line + 1, 0
        before, written = extent.values, extent.characters
        if isinstance(event, yaml.AliasEvent):
            values, characters, height = anchors[str(event.anchor)]
            extent.add(values, characters, line)
            _check_depth(depth + height, line)
            return height
        if isinstance(event, yaml.ScalarEvent):
            extent.add(1, len(event.value), line)
        elif isinstance(event, yaml.CollectionStartEvent):
            extent.add(1, 0, line)
            _check_depth(depth + 1, line)
            for inner in events:
                if isinstance(inner, yaml.CollectionEndEvent):
                    break
                height = max(height, height_of(inner, depth + 1))
            height += 1
        if anchor := getattr(event, "anchor", None):
            anchors[anchor] = extent.values - before, extent.characters - written, height
        return height

    events = iter(yaml.parse(text, Loader=loader))
    for event in events:
        height_of(event, 0)


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
