"""Divides a program's arguments into ``config`` and ``args``, which make the same words again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.compile.source.marked_tree import Tree
from hpcrun.compile.source.problems import Problems, Reporter
from hpcrun.compile.target.command_line import EQUALS, HYDRA, WORDS, flags_of

_LONG = re.compile(r"--([A-Za-z_][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)=(.*)", re.DOTALL)
_NEGATIVE = re.compile(r"-\.?\d[\d.eE_+-]*")

Values = str | list[str] | bool


@dataclass
class FlagItem:
    """Words that belong together: an option with its values, or a word alone."""

    words: list[str]
    name: str | None = None
    """The option's name; None for what cannot be a key of ``config``."""
    style: str = ""
    values: list[str] = field(default_factory=list)


@dataclass
class ProgramFlags:
    """A program's arguments in a spec."""

    config: dict[str, Values] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    style: str = EQUALS


def items(words: Sequence[str]) -> list[FlagItem]:
    """Return a program's arguments as options with their values."""
    found: list[FlagItem] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            found.append(FlagItem([word, *rest]))
            break
        long, key = _LONG.fullmatch(word), _KEY.fullmatch(word)
        if long and long[2] is not None:
            found.append(FlagItem([word], long[1], EQUALS, [long[2]]))
        elif long:
            values = _values(rest)
            found.append(FlagItem([word, *values], long[1], WORDS if values else "", values))
        elif key:
            found.append(FlagItem([word], key[1], HYDRA, [key[2]]))
        elif word.startswith("-") and len(word) > 1 and not _NEGATIVE.fullmatch(word):
            found.append(FlagItem([word, *_values(rest)]))
        else:
            found.append(FlagItem([word]))
    return found


def _values(rest: list[str]) -> list[str]:
    """Take the values of an option off the words after it."""
    taken: list[str] = []
    while rest and (not rest[0].startswith("-") or _NEGATIVE.fullmatch(rest[0]) or rest[0] == "-"):
        taken.append(rest.pop(0))
    return taken


def style_of(found: Sequence[FlagItem]) -> str:
    """Return the style of ``flags`` in which most of a program's options are written."""
    count = Counter(one.style for one in found if one.style)
    if count[HYDRA] and not count[WORDS] and not count[EQUALS]:
        return HYDRA
    return WORDS if count[WORDS] > count[EQUALS] else EQUALS


def divide(found: Sequence[FlagItem], keep: Sequence[str] = ()) -> ProgramFlags:
    """Return the arguments as ``config``, and as ``args`` what would not come back as it was.

    ``keep`` are names of options that are to stay in ``args``.
    """
    result = ProgramFlags(style=style_of(found))
    again = {name for name, count in Counter(one.name for one in found).items() if count > 1}
    for at, one in enumerate(found):
        # Of several words at the end, the last may be no value of the option.
        name = one.name if len(one.values) < 2 or at < len(found) - 1 else None
        fits = one.style in ("", result.style) if result.style != HYDRA else one.style == HYDRA
        if name is None or name in again or name in keep or not fits:
            result.args += one.words
            continue
        value: Values = True
        if one.style:
            value = one.values if len(one.values) > 1 else one.values[0]
        if _comes_back(name, value, result.style, one.words):
            result.config[name] = value
        else:
            result.args += one.words
    return result


def _comes_back(name: str, value: Values, style: str, words: list[str]) -> bool:
    """Check that a key of ``config`` becomes exactly these words."""
    data: Any = {name: typed(value)}
    if style == HYDRA:
        for part in reversed(name.split(".")[1:]):
            data[name] = {part: data[name]}
        data = {name.split(".")[0]: data[name]}
    problems = Problems()
    made = flags_of(data, style, Reporter(Tree({}, {}), problems))
    return not problems and made == words


def typed(value: Values) -> Any:
    """Return a value as YAML reads it from what `hpcrun.convert.draft.spec_text` writes."""
    if isinstance(value, list):
        return [typed(one) for one in value]
    if isinstance(value, bool):
        return value
    return number(value) if number(value) is not None else value


def number(text: str) -> int | float | None:
    """Return the number whose text is this one exactly; None for any other text."""
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) and text != "-0":
        return int(text)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,15}", text) and str(float(text)) == text:
        return float(text)
    return None


def nested(config: dict[str, Values], style: str) -> dict[str, Any]:
    """Return ``config`` as a spec has it: dotted keys of Hydra are mappings."""
    if style != HYDRA:
        return dict(config)
    found: dict[str, Any] = {}
    for name, value in config.items():
        *above, last = name.split(".")
        inner = found
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found
