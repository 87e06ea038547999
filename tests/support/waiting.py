"""Wait for what another process or thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object], what: str = "it", timeout: float = 60.0, pause: float = 0.05
) -> None:
    """Wait until ``condition`` holds; after ``timeout`` seconds TimeoutError names ``what``."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s: not {what}")
        time.sleep(pause)
