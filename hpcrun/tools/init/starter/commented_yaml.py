"""YAML with a comment on each line; what others have written cannot leave its place. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from hpcrun.text import one_line, shortened

_WIDEST, _LONGEST, _COLUMN = 120, 400, 32
# Words that YAML takes for text, as it stands.
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*(?::[A-Za-z_][\w./-]*)?", re.ASCII)
_TAKEN = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"}


def value(given: object) -> str:
    """Return a scalar or a list of scalars as YAML; text is quoted where it has to be."""
    if isinstance(given, (list, tuple)):
        return f"[{', '.join(map(json.dumps, given))}]"
    if isinstance(given, str):
        is_plain = _PLAIN.fullmatch(given) and given.lower() not in _TAKEN
        return given if is_plain else json.dumps(given)
    return json.dumps(given)


class CommentedYaml:
    """Lines of a file, from top to bottom."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, key: str, given: object, comment: str) -> None:
        """Add ``key: value``, with the comment behind it, or above where that is too long."""
        self.line(f"{key}: {value(given)}", comment)

    def line(self, text: str, comment: str = "") -> None:
        """Add a line of ours, with a comment."""
        told = shortened(one_line(comment), _LONGEST)
        if told and max(len(text), _COLUMN) + len(told) > _WIDEST:
            self._lines.append(f"{' ' * (len(text) - len(text.lstrip()))}# {told}")
            told = ""
        self._lines.append(f"{text:<{_COLUMN}}  # {told}" if told else text)

    def comment(self, *texts: str) -> None:
        """Add comments, each on a line of its own."""
        self._lines += [f"# {shortened(one_line(text), _LONGEST)}".rstrip() for text in texts]

    def section(self, title: str, rows: Iterable[str]) -> None:
        """Add comments below a title; nothing without rows."""
        found = list(rows)
        if found:
            self.comment(title, *(f"  {row}" for row in found))

    def text(self) -> str:
        """Return the file."""
        return "\n".join(self._lines) + "\n"
