"""TAB behind ``hpcrun --on``: names of login nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hpcrun.compile.spec import profile_files
from hpcrun.host import expand_home
from hpcrun.state import files
from hpcrun.tools.completion.completion_answers import TypedLine, Word

_HOST = re.compile(r"(?im)^\s*host[ \t=]+(.+)$")
_IS_REACHED = re.compile(r"(?m)^host:")
_MOST_BYTES = 1 << 20


def complete_host(line: TypedLine, incomplete: str) -> Iterator[Word]:
    """Yield the profiles that name a host, and the hosts of the user's own ssh configuration."""
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
