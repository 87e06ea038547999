"""What git says of the code, without needing git."""

from __future__ import annotations

import subprocess
from pathlib import Path


def top_level(path: Path) -> Path | None:
    """The checkout around ``path``: the nearest directory above it that holds ``.git``."""
    for directory in (path, *path.parents):
        if (directory / ".git").exists():
            return directory
    return None


def is_ignored(path: Path, checkout: Path) -> bool:
    """Whether git ignores ``path``; False where there is no git to ask."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), "check-ignore", "-q", "--", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
