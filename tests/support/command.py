"""Runs ``hpcrun`` as a person would, in a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.nursery import COMMANDS, Nursery, nursery

# What Python reads as it starts.
_OF_PYTHON = ("PYTHON", "LC_", "LANG", "COVERAGE")


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
    if python == sys.executable and not options and _for_python(environment) == _AT_START:
        return forked(nursery(of=COMMANDS), arguments, cwd or Path.cwd(), environment, timeout)
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


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_OF_PYTHON)}


_AT_START = _for_python(os.environ)


def forked(
    where: Nursery,
    arguments: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str],
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, forked by a nursery; TimeoutExpired is raised after a time."""
    words = argv(*arguments)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = where.start(
            words[1:], env=environment, output=output.fileno(), errors=errors.fileno(), cwd=cwd
        )
        code = child.poll(timeout)
        child.kill()
        said = []
        for stream in (output, errors):
            stream.seek(0)
            # As a pipe in text mode reads it.
            said.append(io.TextIOWrapper(stream).read())
    if code is None:
        raise subprocess.TimeoutExpired(words, timeout, *said)
    return subprocess.CompletedProcess(words, code, *said)


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
