"""Runs ``hpcrun`` as a person would, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def argv(*arguments: str | Path, python: str = sys.executable) -> list[str]:
    """The command with its arguments."""
    return [python, "-m", "hpcrun", *map(str, arguments)]


def hpcrun(
    *arguments: str | Path,
    root: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    timeout: float = 120,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with no terminal.

    Parameters
    ----------
    root
        Where experiments lie: ``HPCRUN_ROOT`` of the command.
    env
        Variables beside those of the tests.
    options
        Further ones of `subprocess.run`; an ``environment`` replaces that of the tests.
    """
    environment = {**options.pop("environment", os.environ), **(env or {})}
    if root is not None:
        environment["HPCRUN_ROOT"] = str(root)
    return subprocess.run(
        argv(*arguments, python=python),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
        check=False,
        **options,
    )


def start(*arguments: str | Path, root: Path) -> subprocess.Popen[str]:
    """Start a command that goes on by itself."""
    return subprocess.Popen(
        argv(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HPCRUN_ROOT": str(root)},
    )
