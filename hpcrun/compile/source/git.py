"""Questions about a git checkout, most of which need no git."""

from __future__ import annotations

import subprocess
from pathlib import Path


def top_level(path: Path) -> Path | None:
    """Return the checkout around ``path``: the nearest directory above that holds ``.git``."""
    return next((up for up in (path, *path.parents) if (up / ".git").exists()), None)


def is_ignored(path: Path, checkout: Path) -> bool:
    """Return whether git ignores ``path``; False where git cannot be asked."""
    command = ["git", "-C", str(checkout), "check-ignore", "-q", "--", str(path)]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
