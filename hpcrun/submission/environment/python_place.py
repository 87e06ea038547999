"""Where a Python and its packages lie, as that Python says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrun import ask_python
from hpcrun.errors import UsageError
from hpcrun.submission.python_probe import TIMEOUT, in_job_environment

_PROGRAM = ask_python.program("""
import os, platform, sys, sysconfig
answer = {
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
}
""")


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
    argv, environment = in_job_environment([python, *_PROGRAM], setup, variables)
    found = ask_python.ask(argv, timeout=TIMEOUT, environment=environment)
    if found.data is not None:
        lists = {name: tuple(found.data[name]) for name in ("paths", "standard")}
        return PythonPlace(**{**found.data, **lists})
    late = f"no answer within {TIMEOUT:g} s"
    said = [late] if found.code is None else found.errors.strip().splitlines()[-1:]
    raise UsageError(
        f"environment.python: {python} does not say where its packages lie{': ' * bool(said)}"
        + "".join(said),
        hint="try it by hand, or leave out `environment.venv: frozen`",
    )
