"""What hpcrun says in a rank's log."""

from __future__ import annotations

import contextlib


def tell(message: str) -> None:
    """Print a line; a log on a full disk goes without it."""
    with contextlib.suppress(OSError):
        print(f"hpcrun: {message}", flush=True)
