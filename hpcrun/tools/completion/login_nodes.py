"""TAB behind ``hpcrun --on``: names of login nodes, and what the one that is typed answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun.host import expand_home
from hpcrun.state import files

if TYPE_CHECKING:
    from hpcrun.tools.completion.completion_answers import TypedLine, Word

# `hpcrun --on HOST …` and `hpcrun on HOST …`, once something follows.
_TYPED = re.compile(r"^\s*\S+\s+(?:--on(?:=|\s+)|on\s+)([^\s=]+)\s+")
_HOST = re.compile(r"(?im)^\s*host[ \t=]+(.+)$")
_IS_REACHED = re.compile(r"(?m)^host:")
_MOST_BYTES = 1 << 20


def complete_host(line: TypedLine, incomplete: str) -> Iterator[Word]:
    """Yield the profiles that name a host, and the hosts of the user's own ssh configuration."""
    from hpcrun.compile.spec import profile_files
    from hpcrun.tools.completion.completion_answers import Word

    del line
    found = {}
    for name, path in profile_files.available(Path.cwd()).items():
        if _IS_REACHED.search(_text(path)):
            found[name] = "a profile"
    for row in _HOST.findall(_text(expand_home("~/.ssh/config"))):
        for name in row.split():
            if not set(name) & set("*?!"):
                found.setdefault(name, "of ~/.ssh/config")
    for name, about in found.items():
        if name.startswith(incomplete):
            yield Word(name, about=about)


def _text(path: Path) -> str:
    try:
        return files.read_bytes(path, _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def is_far(text: str) -> bool:
    """Check whether a line names a login node, which is to answer."""
    return _TYPED.match(text) is not None


def far_rows(text: str, current: str | None) -> list[str] | None:
    """Return the rows that a login node answers, or none; None if the line names no login node."""
    found = _TYPED.match(text)
    if found is None:
        return None
    try:
        from hpcrun.tools.remote.far_completion import ask
    except ModuleNotFoundError:
        return []
    return ask(found[1], f"hpcrun {text[found.end() :]}", current)
