"""The modules that a program imports before all else, read from its file without running it."""

from __future__ import annotations

import ast
from pathlib import Path

from hpcrun.state import files

_MOST_BYTES, _MOST_MODULES = 1 << 20, 100
# Each submission takes it along.
_OURS = "hpcrun"


def needed_modules(file: str, code_root: Path, import_root: str) -> dict[str, str]:
    """Return module -> ``train.py:3`` of what the code does not have itself and cannot do without.

    Only what ``file`` imports outside of functions, ``try`` and ``if``; empty if it cannot be read,
    or changes where modules are looked for. The paths are relative to the code's root.
    """
    try:
        text = files.read_bytes(code_root / file, _MOST_BYTES)
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if b"sys.path" in text or b"addsitedir" in text:
        return {}
    roots = [code_root, (code_root / file).parent, code_root / import_root]
    found: dict[str, str] = {}
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in (name.partition(".")[0] for name in names):
            own = any((root / name).exists() or (root / f"{name}.py").exists() for root in roots)
            if not own and name != _OURS and len(found) < _MOST_MODULES:
                found.setdefault(name, f"{file}:{node.lineno}")
    return found
