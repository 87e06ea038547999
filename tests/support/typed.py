"""Types ``hpcrun`` commands in this process, one after the other, and keeps what they print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun.cli import main


@dataclass(frozen=True)
class Typed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Keyboard:
    """Types commands about one root, with no terminal."""

    root: Path
    capture: pytest.CaptureFixture[str]

    def type(self, *words: str | Path, code: int = 0) -> Typed:
        """Type a command to its end; ``code`` is the exit code that it must have."""
        self.capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main._main([*map(str, words), "--root", str(self.root)])
        captured = self.capture.readouterr()
        found = Typed(int(end.value.code or 0), captured.out, captured.err)
        assert found.code == code, f"{words}: {found}"
        return found
