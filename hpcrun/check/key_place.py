"""The file and line of a key, looked up once something is wrong with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile.source.marked_tree import COMMAND_LINE
from hpcrun.state import files

_LARGEST_FILE = 1 << 20


class KeyPlaces:
    """Where keys are written: on the command line, or in one of the spec's files.

    Parameters
    ----------
    sources
        The YAML files, the spec's own first; the cluster profile is one of them.
    overrides
        Words such as ``resources.time=10``, or ``time=10``.
    """

    def __init__(self, sources: Sequence[Path], overrides: Sequence[str]) -> None:
        self._sources = sources
        self._overridden = [word.lstrip("+").partition("=")[0] for word in overrides]
        self._lines: dict[Path, dict[str, int]] = {}

    def of(self, key: str) -> str:
        """Return ``finetune.yaml:12`` or ``command line``; empty where the key is not written."""
        if not key:
            return ""
        if any(key == word or key.endswith(f".{word}") for word in self._overridden):
            return COMMAND_LINE
        for path in self._sources:
            if path not in self._lines:
                self._lines[path] = _lines(path)
            if line := self._lines[path].get(key):
                return f"{_shown(path)}:{line}"
        return ""


def _shown(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        relative = os.path.relpath(path)
        return relative if not relative.startswith("..") else str(path)
    return str(path)


def _lines(path: Path) -> dict[str, int]:
    """Return full key -> line of a YAML file; a key with dots is split at them."""
    import yaml

    found: dict[str, int] = {}

    def walk(node: Any, prefix: str) -> None:
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue
            key = f"{prefix}{name.value}"
            found.setdefault(key, name.start_mark.line + 1)
            if isinstance(value, yaml.MappingNode):
                walk(value, f"{key}.")

    with contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        node = yaml.compose(files.read_bytes(path, _LARGEST_FILE), Loader=loader)
        if isinstance(node, yaml.MappingNode):
            walk(node, "")
    return found
