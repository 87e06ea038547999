"""A question to another Python: a program to run, what it reads, and its answer as a line of JSON.

Setup lines and imports may print too, so that the answer is marked.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun import host
from hpcrun.shared_dataclass import dataclass

MARK = "hpcrun-answer:"
# A list of the sizes of a model's parameters is the longest answer.
_MOST_BYTES = 20_000_000


def program(source: str) -> tuple[str, str]:
    """Return the words that follow a Python's path, for a program that assigns its ``answer``."""
    end = f'import json, sys\nsys.stdout.write("\\n{MARK}" + json.dumps(answer) + "\\n")\n'
    return "-c", f"{source}\n{end}"


@dataclass(frozen=True)
class PythonAnswer:
    """The answer of a Python, or its end without one."""

    data: Any = None
    """None without an answer."""
    code: int | None = None
    """Its exit code; None if it did not end in time."""
    output: str = ""
    errors: str = ""

    def last_errors(self, most: int) -> str:
        """Return its last lines of errors as the end of a sentence; empty without any."""
        lines = "\n".join(f"  {line}" for line in self.errors.strip().splitlines()[-most:])
        return f"; it said:\n{lines}" if lines else ""


def ask(
    command: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
    mark: str = MARK,
    cwd: str | None = "/",
) -> PythonAnswer:
    """Start a command that ends in a Python and its program; wait ``timeout`` seconds at most.

    ``given`` is its input. It does not start where a person happens to be, as ``python -c`` looks
    for modules there. Raises OSError if it cannot be started.
    """
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    process = host.start_piped(command, cwd=cwd, env=environment, stdin=stdin)
    found = host.answer(process, timeout, given)
    if found is None:
        return PythonAnswer()
    marked = [line for line in found[0].splitlines() if line.startswith(mark)]
    data = None
    if marked and len(marked[-1]) <= _MOST_BYTES:
        with contextlib.suppress(ValueError):
            data = json.loads(marked[-1][len(mark) :])
    return PythonAnswer(data, process.returncode, *found)
