"""Files of an installation that name other places: scripts, and records of editable packages."""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_INNER = re.compile(
    rb"""'''exec' (?P<quote>"?)(?P<python>/.*/python[0-9.]*)(?P=quote) "\$0" "\$@"$"""
)
_SHEBANG = re.compile(rb"#!(?P<python>/[^ \n]*/python[0-9.]*)(?P<options>( [^\n]*)?)$")


def beside(content: bytes, directories: set[str]) -> bytes | None:
    """Return a script that starts the Python beside it; None if it starts none of these."""
    first, _, rest = content.partition(b"\n")
    options = b""
    if found := _SHEBANG.fullmatch(first.rstrip(b"\r")):
        options = found["options"]
    else:
        # Of a Python whose path is too long for the kernel, or has a space.
        second, _, rest = rest.partition(b"\n")
        found = _INNER.fullmatch(second)
        if found is None:
            return None
        _, _, rest = rest.partition(b"\n")
    python = os.fsdecode(found["python"])
    if posixpath.dirname(python) not in directories:
        return None
    name = os.fsencode(posixpath.basename(python))
    start = b"""#!/bin/sh\n'''exec' "$(dirname -- "$(realpath -- "$0")")/%s"%s "$0" "$@"\n' '''\n"""
    return start % (name, options) + rest


def mapping(finder: str) -> dict[str, str] | None:
    """Return module -> source of setuptools' finder of an editable installation."""
    try:
        tree = ast.parse(Path(finder).read_text(encoding="utf-8"))
        for node in tree.body:
            names = (
                [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            )
            if any(isinstance(one, ast.Name) and one.id == "MAPPING" for one in names):
                found = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                return {str(name): str(path) for name, path in dict(found).items()}
    except (OSError, ValueError, SyntaxError, TypeError):
        return None
    return None


def editables(path: str) -> Iterator[tuple[str, str]]:
    """Yield name and source of the editable installations in a directory of packages."""
    for record in sorted(Path(path).glob("*.dist-info/direct_url.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            data = json.loads(record.read_bytes())
            parts = urllib.parse.urlsplit(data["url"])
            if data["dir_info"].get("editable") is True and parts.scheme == "file":
                source = os.path.realpath(urllib.parse.unquote(parts.path))
                yield record.parent.name.partition("-")[0], source
