"""Checks of a spec's ``batch_script``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hpcrun.compile.source import limits
from hpcrun.compile.source.problems import Reporter
from hpcrun.policy import frameworks
from hpcrun.state import files
from hpcrun.state.spec.blocks import RANKS


def check(data: dict[str, Any], directory: Path, report: Reporter) -> None:
    """Report a file that is not there, or that starts no ranks, and keys that exclude it."""
    name, line = data["batch_script"], f'sh "${RANKS}" || exit'
    text = b""
    if not Path(name).is_absolute() and ".." not in Path(name).parts:
        with contextlib.suppress(OSError, ValueError):
            text = files.read_bytes(directory / name, limits.LARGEST_FILE)
    if not text:
        found = f"found {name!r}; accepted is the path of a shell file in the spec's directory"
        report.at("batch_script", found)
    elif RANKS.encode() not in text:
        hint = "where it starts them itself, name it in entry, with framework: batch"
        report.at("batch_script", f"{name} has no line that starts the ranks: {line}", hint)
    if data["framework"] == frameworks.BATCH:
        what = "is not used: with framework batch the entry starts the ranks"
        report.at("batch_script", what, "leave one of the two out")
    elif data["roles"]:
        report.at("batch_script", "cannot be used with roles", "leave it out")
