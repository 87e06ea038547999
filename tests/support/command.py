"""Runs ``hpcrun`` as a person would, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def hpcrun(*arguments: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with no terminal."""
    return subprocess.run(
        [sys.executable, "-m", "hpcrun", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "HPCRUN_ROOT": str(root), **environment},
        timeout=60,
        check=False,
    )


def start(*arguments: str, root: Path) -> subprocess.Popen[str]:
    """Start a command that goes on by itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "hpcrun", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HPCRUN_ROOT": str(root)},
    )
