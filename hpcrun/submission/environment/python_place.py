"""Where a Python and its packages lie, as that Python says it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun import host
from hpcrun.errors import UsageError
from hpcrun.submission.python_probe import TIMEOUT, in_job_environment

_MARK = "hpcrun-place:"
# Setup lines may print, so that the answer is marked.
_QUESTION = f"""
import json, os, platform, sys, sysconfig
answer = {{
    "executable": sys.executable,
    "base": getattr(sys, "_base_executable", "") or sys.executable,
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "version": "%d.%d.%d" % tuple(sys.version_info[:3]),
    "platform": " ".join([sysconfig.get_platform(), *platform.libc_ver()]),
    "paths": [path for path in sys.path if path[:1] == "/" and os.path.exists(path)],
    "standard": [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")],
    "scripts": sysconfig.get_path("scripts"),
    "packages": sysconfig.get_path("purelib"),
}}
sys.stdout.write("\\n{_MARK}" + json.dumps(answer) + "\\n")
"""


@dataclass(frozen=True)
class PythonPlace:
    """The directories of a Python."""

    executable: str
    base: str
    """The Python that a virtual environment starts; the same without one."""
    prefix: str
    base_prefix: str
    version: str
    platform: str
    paths: tuple[str, ...]
    """The import path: what is there of ``sys.path``."""
    standard: tuple[str, ...]
    """The directories of the standard library."""
    scripts: str
    """``bin``."""
    packages: str
    """``site-packages``."""

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base_prefix


def ask(python: str, setup: Sequence[str], variables: Mapping[str, str]) -> PythonPlace:
    """Start a Python that `hpcrun.submission.python_probe` has probed, and ask it.

    Raises
    ------
    UsageError
        It gives no answer.
    """
    argv, environment = in_job_environment([python, "-c", _QUESTION], setup, variables)
    process = host.start_piped(argv, cwd="/", env=environment)
    output, words = host.answer(process, TIMEOUT) or ("", f"no answer within {TIMEOUT:g} s")
    for line in output.splitlines():
        if line.startswith(_MARK):
            data: dict[str, Any] = json.loads(line[len(_MARK) :])
            lists = {name: tuple(data[name]) for name in ("paths", "standard")}
            return PythonPlace(**{**data, **lists})
    said = words.strip().splitlines()[-1:]
    raise UsageError(
        f"environment.python: {python} does not say where its packages lie{': ' * bool(said)}"
        + "".join(said),
        hint="try it by hand, or leave out `environment.venv: frozen`",
    )
