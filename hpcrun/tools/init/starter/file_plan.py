"""Files to be written: what is there already is kept, unless it may be replaced."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from hpcrun.state import files

WRITTEN, UNCHANGED, KEPT, REPLACED = "written", "unchanged", "kept", "replaced"


@dataclass(frozen=True)
class PlannedFile:
    """A file, and what becomes of it."""

    path: Path
    text: str
    action: str
    """``written``, ``unchanged`` (it holds that already), ``kept`` (it holds something else), or
    ``replaced``."""
    there: str = ""
    """What it holds now."""

    @classmethod
    def of(cls, path: Path, text: str, *, force: bool) -> PlannedFile:
        """Return the plan for a file as it is now; with ``force`` it may be replaced.

        Raise OSError where it cannot be read.
        """
        if not os.path.lexists(path):
            return cls(path, text, WRITTEN)
        try:
            there = files.read_bytes(path).decode(errors="surrogateescape")
        except FileNotFoundError:  # a link to nothing
            there = ""
        if there == text:
            return cls(path, text, UNCHANGED, there)
        return cls(path, text, REPLACED if force else KEPT, there)

    def write(self) -> None:
        """Write it as a whole, if it is to be; a link is written through. Raise OSError."""
        if self.action == WRITTEN and os.path.lexists(self.path):
            raise FileExistsError(errno.EEXIST, "was made by somebody meanwhile", str(self.path))
        if self.action in (WRITTEN, REPLACED):
            target = Path(os.path.realpath(self.path))
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(target, self.text.encode(errors="surrogateescape"))
