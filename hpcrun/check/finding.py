"""Findings of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Return findings without repetition, the worst first; equal ones of several runs are one."""
    runs: dict[Finding, list[int]] = {}
    for one in found:
        runs.setdefault(replace(one, runs=()), []).extend(one.runs)
    every = [replace(one, runs=tuple(sorted(set(numbers)))) for one, numbers in runs.items()]
    return sorted(every, key=lambda one: SEVERITIES.index(one.severity))
