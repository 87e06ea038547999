"""The first start of a run's container on a node: that it starts, and what its Python has."""

from __future__ import annotations

import subprocess

from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError

_MARK, _TAKES = "hpcrun-operators:", 300
_QUESTION = f"""
import sys
from hpcrun.run.node import op_cache
found = op_cache.key(sys.argv[1:]) if sys.argv[1:] else None
print("\\n{_MARK}" + (found or ""))
"""


def operators_key(python: RankPython, builders: list[str]) -> str | None:
    """Return the key of the ranks' Python in a container, which also shows that it starts.

    Raises HpcrunError if it does not; the message ends with what was said.
    """
    argv = python.command("-c", _QUESTION, *builders)
    try:
        asked = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TAKES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HpcrunError(
            f"the container's Python gave no answer within {_TAKES} s",
            hint="start environment.container.image by hand on such a node",
        ) from None
    for line in asked.stdout.splitlines():
        if line.startswith(_MARK):
            return line.removeprefix(_MARK) or None
    said = "\n".join((asked.stderr or asked.stdout).strip().splitlines()[-5:])
    raise HpcrunError(
        f"the container's Python does not start (exit code {asked.returncode}):\n{said}",
        hint="see environment.container: image, runtime, python and mounts",
    )
