"""The longest time for which a command prints nothing."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Heard:
    """What a command printed, on both streams, and how long it was silent."""

    returncode: int
    text: str
    longest: float
    """Seconds of the longest silence, from the start to the end of the command."""
    after: str
    """The last line before it."""


def listen(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> Heard:
    """Run a command without a terminal, and measure the silences between pieces of its output."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    descriptor, text, longest, after = process.stdout.fileno(), b"", 0.0, b""
    began = last = time.monotonic()
    try:
        while True:
            ready, _, _ = select.select([descriptor], [], [], 1.0)
            now = time.monotonic()
            block = os.read(descriptor, 1 << 16) if ready else None
            if block is not None:
                if now - last > longest:
                    longest, after = now - last, text.rstrip().rpartition(b"\n")[2]
                last, text = now, text + block
                if not block:
                    break
            assert now - began < timeout, f"no end within {timeout:g} s:\n{text.decode()}"
        code = process.wait(timeout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return Heard(code, text.decode(errors="replace"), longest, after.decode(errors="replace"))
