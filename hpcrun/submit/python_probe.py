"""Probe the Python that a job will use, without importing slow libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from hpcrun.errors import UsageError
from hpcrun.state.spec.experiment import Tracking
from hpcrun.submit.local.processes import clean_environment

OLDEST = (3, 10)
TIMEOUT = 60.0

_MARK = "hpcrun-probe:"
_TRACKERS = tuple(field.name for field in fields(Tracking))
_WANTED_BY = {name: f"tracking.{name}" for name in _TRACKERS}

# Valid in any Python, so that an old one can report its version.
_QUESTION = f"""
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {{"executable": sys.executable, "version": "%d.%d.%d" % tuple(sys.version_info[:3])}}
try:
    from importlib import metadata, util
except ImportError:
    metadata = util = None
for name in {("torch", "deepspeed", *_TRACKERS)}:
    answer[name] = None
    try:
        if util is not None and getattr(util.find_spec(name), "origin", None):
            answer[name] = "unknown"
            answer[name] = metadata.version(name)
    except Exception:
        pass
sys.stdout.write("\\n{_MARK}" + json.dumps(answer) + "\\n")
"""


@dataclass(frozen=True)
class Probe:
    """The answer of a Python."""

    executable: str
    """``sys.executable``."""
    version: str
    """Such as ``3.11.2``."""
    libraries: dict[str, str | None]
    """Versions of torch, deepspeed and the trackers; None if they are not installed."""

    @property
    def facts(self) -> dict[str, str | None]:
        """The record in ``submission.json``."""
        return {"executable": self.executable, "version": self.version, **self.libraries}


def probe(
    python: str,
    *,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    needs: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> Probe:
    """Start the job's Python once, and return its version and those of its libraries.

    ``python`` is a path, or a name that PATH has once the job's ``setup`` lines of bash, such as
    ``module load cuda``, have run with the job's ``variables``. Raise UsageError if it does not
    exist, gives no answer within ``timeout`` seconds, is too old or lacks a library of ``needs``.
    """
    argv = [python, "-c", _QUESTION]
    if setup:
        argv = ["bash", "-lc", "\n".join([*setup, 'exec "$@"']), "bash", *argv]
    code, output, words = _answer(argv, variables or {}, timeout, python)
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise _unusable(python, code, words, bool(setup))
    data = json.loads(lines[-1][len(_MARK) :])
    found = Probe(data.pop("executable"), data.pop("version"), data)
    _check(found, python, needs)
    return found


def _answer(
    argv: Sequence[str], variables: Mapping[str, str], timeout: float, python: str
) -> tuple[int, str, str]:
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**clean_environment(), **variables},
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(
            f"environment.python: {python}: {error.strerror}",
            hint="give the path of a Python that the job can use, one with torch for training",
        ) from None
    with process:
        try:
            output, words = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"environment.python: {python} gave no answer within {timeout:g} s",
                hint="try `environment.setup` and this Python by hand",
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, words


def _unusable(python: str, code: int, words: str, with_setup: bool) -> UsageError:
    said = "\n".join(f"  {line}" for line in words.strip().splitlines()[-5:])
    after = " after environment.setup" if with_setup else ""
    what = {126: "cannot be executed", 127: "is not there"}.get(code, "is no usable Python")
    return UsageError(
        f"environment.python: {python} {what}{after} (exit code {code})"
        + (f"; it said:\n{said}" if said else ""),
        hint="give the path of a Python that the job can use, one with torch for training",
    )


def _check(found: Probe, python: str, needs: Sequence[str]) -> None:
    if tuple(int(part) for part in found.version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"environment.python: {python} is Python {found.version}; it must be {oldest} or newer",
            hint="point environment.python to a newer one",
        )
    missing = [name for name in needs if found.libraries.get(name) is None]
    if missing:
        names = " and ".join(missing)
        wanting = list(dict.fromkeys(_WANTED_BY.get(name, "a function entry") for name in missing))
        verb = "needs" if len(wanting) == 1 else "need"
        raise UsageError(
            f"environment.python: {python} (Python {found.version}) has no {names}, which "
            f"{' and '.join(wanting)} {verb}",
            hint=f"`{found.executable} -m pip install {' '.join(missing)}`, or point "
            "environment.python to a Python that has them",
        )
