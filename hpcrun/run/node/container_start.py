"""The first start of a run's container on a node: that it starts, and what its Python has."""

from __future__ import annotations

from hpcrun import ask_python
from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError

_TAKES = 300
_PROGRAM = ask_python.program("""
import sys
from hpcrun.run.node import op_cache
answer = [op_cache.key(sys.argv[1:]) if sys.argv[1:] else None]
""")


def operators_key(python: RankPython, builders: list[str]) -> str | None:
    """Return the key of the ranks' Python in a container, which also shows that it starts.

    Raises HpcrunError if it does not; the message ends with what was said.
    """
    found = ask_python.ask(python.command(*_PROGRAM, *builders), timeout=_TAKES, cwd=None)
    if found.data is not None:
        (key,) = found.data
        return str(key) if key else None
    if found.code is None:
        raise HpcrunError(
            f"the container's Python gave no answer within {_TAKES} s",
            hint="start environment.container.image by hand on such a node",
        )
    said = "\n".join((found.errors or found.output).strip().splitlines()[-5:])
    raise HpcrunError(
        f"the container's Python does not start (exit code {found.code}):\n{said}",
        hint="see environment.container: image, runtime, python and mounts",
    )
