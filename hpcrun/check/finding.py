"""Findings of a check, and the file and line of the key that one is about."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import COMMAND_LINE, dotted
from hpcrun.compile.source.problems import Problems
from hpcrun.text import entry, one_line, runs_text

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or should be known."""

    severity: str
    """``error``: it would be refused, wait for ever or fail at once; ``warning``: it may; ``note``:
    to be known."""
    key: str
    """The spec's key, such as ``resources.partition``; empty where there is none."""
    message: str
    hint: str | None = None
    runs: tuple[int, ...] = ()
    """Numbers of the runs that it is about; empty for all."""
    place: str = ""
    """``finetune.yaml:12``, or ``command line``; empty where the key is not written."""

    def lines(self, of_runs: int = 0) -> str:
        """Return it as text; the runs are named unless they are all ``of_runs``."""
        where = f"{self.key} ({self.place})" if self.place else self.key
        some = f"{runs_text(self.runs)}: " if self.runs and len(self.runs) < of_runs else ""
        text = f"{self.severity}: {f'{where}: ' if where else ''}{some}{self.message}"
        hint = f"\n  hint: {one_line(self.hint)}" if self.hint else ""
        return f"{entry(text)}{hint}"

    def to_data(self) -> dict[str, Any]:
        """Return its fields as plain data; unknown is null."""
        return {
            "severity": self.severity,
            "key": self.key or None,
            "place": self.place or None,
            "message": self.message,
            "hint": self.hint,
            "runs": list(self.runs),
        }


def merge(found: Iterable[Finding]) -> list[Finding]:
    """Return findings without repetition, the worst first; equal ones of several runs are one."""
    runs: dict[Finding, list[int]] = {}
    for one in found:
        runs.setdefault(replace(one, runs=()), []).extend(one.runs)
    every = [replace(one, runs=tuple(sorted(set(numbers)))) for one, numbers in runs.items()]
    return sorted(every, key=lambda one: SEVERITIES.index(one.severity))


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
        self._lines: dict[Path, dict[str, int | None]] = {}

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
                return f"{_relative(path)}:{line}"
        return ""


def _relative(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        relative = os.path.relpath(path)
        return relative if not relative.startswith("..") else str(path)
    return str(path)


def _lines(path: Path) -> dict[str, int | None]:
    """Return full key -> line of a YAML file; empty where it cannot be read."""
    tree = yaml_reader.read_yaml(path, str(path), Problems())
    return {dotted(key): mark.line for key, mark in tree.marks.items()} if tree else {}
