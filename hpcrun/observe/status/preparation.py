"""The preparation of a run's nodes before its ranks start, by the last lines of agents' logs."""

from __future__ import annotations

import contextlib
import os
import re

from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.text import one_line, shortened

_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d hpcrun: (?P<words>\S.*)")
# Bytes of a log, logs that are looked at, and characters that are shown.
_TAIL, _MOST, _SHOWN = 2_000, 64, 200


def words(attempt: AttemptPaths) -> str | None:
    """Return what the agent that wrote last says, with its node; None before one says anything."""
    newest: tuple[float, str] | None = None
    with contextlib.suppress(OSError), os.scandir(attempt.directory) as entries:
        logs = [one for one in entries if one.name.startswith("agent-")]
        for entry in logs[:_MOST]:
            with contextlib.suppress(OSError):
                tail = files.read_tail(attempt.directory / entry.name, _TAIL)
                found = [
                    _LINE.fullmatch(line) for line in tail.decode(errors="replace").split("\n")
                ]
                said = [line["words"] for line in found if line]
                when = entry.stat(follow_symlinks=False).st_mtime
                if said and (newest is None or when > newest[0]):
                    node = entry.name[len("agent-") :].removesuffix(".log")
                    newest = when, f"{node}: {said[-1]}"
    return None if newest is None else one_line(shortened(newest[1], _SHOWN))
