"""Places in followed logs, told to a reader that goes on there after its connection was lost.

The reader names a file by HPCRUN_LOGS_PLACES: ``{path: offset}``, the places that it knows, empty
at first. What is printed then has lines that begin with `MARK` between the others: a JSON object of
the places that have moved, behind all lines that precede them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hpcrun.observe.logs.tail import Tail
from hpcrun.state import files
from hpcrun.text import whole_number

VARIABLE = "HPCRUN_LOGS_PLACES"
MARK = b"\x1e"


class LogPlaces:
    """Where to begin in each file, and how far each is shown.

    Raises OSError or ValueError if the file that ``VARIABLE`` names cannot be read.
    """

    def __init__(self, file: str) -> None:
        self._known: dict[str, int] = files.read_json(Path(file))
        self._moved: dict[str, int] = {}

    @classmethod
    def wanted(cls) -> LogPlaces | None:
        """Return the places that a reader asks for; None if none does."""
        file = os.environ.get(VARIABLE)
        return cls(file) if file else None

    @property
    def attempts(self) -> dict[Path, int]:
        """Return a run's directory -> the newest of its attempts that was shown."""
        found: dict[Path, int] = {}
        for name in self._known:
            attempt = Path(name).parent
            number = whole_number(attempt.name) or 0
            run = attempt.parent.parent
            found[run] = max(found.get(run, 0), number)
        return found

    def begin(self, tail: Tail) -> bool:
        """Begin a file where the reader is; return whether that was known, or nothing of it was."""
        if not self._known:
            return False
        tail.begin_behind(self._known.get(os.fspath(tail.source.path), 0))
        return True

    def moved(self, tail: Tail) -> None:
        """Note how far a file is read."""
        self._moved[os.fspath(tail.source.path)] = tail.line_start

    def moved_line(self) -> bytes:
        """Return the line that tells the places that have moved since the last one."""
        if not self._moved:
            return b""
        moved, self._moved = self._moved, {}
        return MARK + json.dumps(moved).encode() + b"\n"
