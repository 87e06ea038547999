"""Writes a spec as YAML with comments, in which every text comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun.convert.draft.program_flags import number
from hpcrun.text import visible

_PLAIN = re.compile(
    r"(?:[A-Za-z_./~][\w./~+@%=,-]*(?: [\w./~+@%=(-][\w./~+@%=(),-]*)*|[1-9]\d*[KMGT]B?)",
    re.ASCII,
)
_NOT_TEXT = re.compile(
    r"true|false|yes|no|on|off|y|n|null|none|nan|\.nan|[-+]?\.?inf|~|\.\d.*|\d[\d_.:eE+-]*|=|<<",
    re.IGNORECASE,
)
_WIDTH = 96


class Verbatim(str):
    """A text that is always quoted, such as a length of time."""

    __slots__ = ()


def scalar(value: Any) -> str:
    """Return a scalar as YAML reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    text = str(value)
    if not isinstance(value, Verbatim):
        if number(text) is not None:
            return text
        if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
            return text
        if re.fullmatch(r"\$\{[\w.:/,-]+\}[\w./-]*", text):
            return text
    if visible(text) == text and "\n" not in text and "\t" not in text:
        if not isinstance(value, Verbatim):
            return "'" + text.replace("'", "''") + "'"
        return f'"{text}"' if "\\" not in text and '"' not in text else _double(text)
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
    return f"'{shown}'" if is_plain and re.search(r"[,\[\]{}#]|: ", shown) else shown


def write(spec: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return a spec as YAML.

    Parameters
    ----------
    comments
        Dotted key -> the comment behind it.
    """
    return "".join(f"{line}\n" for line in _lines(spec, "", 0, comments))


def _lines(
    value: Mapping[str, Any], above: str, indent: int, comments: Mapping[str, str]
) -> Iterator[str]:
    before = " " * indent
    for name, inner in value.items():
        full = f"{above}.{name}" if above else str(name)
        comment = f"   # {comments[full]}" if full in comments else ""
        start = f"{before}{key(str(name))}:"
        if isinstance(inner, Mapping) and inner:
            if _is_short(inner, start, full, comments):
                yield f"{start} {inline(inner)}{comment}"
                continue
            yield start + comment
            yield from _lines(inner, full, indent + 2, comments)
        elif isinstance(inner, (list, tuple)) and inner:
            shown = f"{start} {inline(inner)}"
            if len(shown) + len(comment) <= _WIDTH and not _has_lines(inner, full):
                yield shown + comment
                continue
            yield start + comment
            for one in inner:
                yield from _item(one, before)
        else:
            yield f"{start} {inline(inner)}{comment}"


def _has_lines(inner: Sequence[Any], full: str) -> bool:
    return full.endswith("setup") or any("\n" in str(one) for one in inner)


def _item(one: Any, before: str) -> Iterator[str]:
    text = str(one)
    if isinstance(one, str) and "\n" in text and visible(text) == text and "\t" not in text:
        first = text.split("\n")[0]
        if not first.startswith(" "):
            yield f"{before}  - |-"
            yield from (f"{before}    {line}" if line else "" for line in text.split("\n"))
            return
    yield f"{before}  - {_in_flow(one)}"


def _is_short(inner: Mapping[str, Any], start: str, full: str, comments: Mapping[str, str]) -> bool:
    """Check whether a mapping goes into one line: nothing in it has a comment."""
    if any(one.startswith(f"{full}.") for one in comments) or len(inner) > 4:
        return False
    if full in ("config", "resources", "environment", "deepspeed", "sweep") or "." in full[:0]:
        return False
    return len(start) + len(inline(inner)) < 90 and not any(
        isinstance(one, Mapping) and len(one) > 1 for one in inner.values()
    )
