"""Probe the Python that a job will use, without importing slow libraries.

It is the only program of a spec that `hpcrun submit` starts on the login node, with the setup lines
and the variables that a job has; `hpcrun plan` and ``--dry-run`` start nothing. A Python of another
user is not started, nor is any whose spec or profile is another user's.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpcrun import ask_python, python_packages
from hpcrun.ask_python import PythonAnswer
from hpcrun.container import runtimes
from hpcrun.container.rank_python import NOT_PROBED, image_facts, of_container
from hpcrun.container.runtimes import Mount
from hpcrun.errors import UsageError
from hpcrun.extensions import TRACKERS
from hpcrun.state import files, permissions
from hpcrun.state.environment.environment_block import Container
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.submission.local.processes import clean_environment
from hpcrun.text import one_line, shortened

KEY, KEY_INSIDE = "environment.python", "environment.container.python"
OLDEST = (3, 10)
TIMEOUT = 60.0

_FAILED = "hpcrun-probe-failed:"
# Reports a setup line that fails, as the job goes on after it.
_TRAP = f"""trap 'printf "\\n{_FAILED}%d %s\\n" $? "${{BASH_COMMAND//[[:cntrl:]]/ }}"' ERR"""
_MOST_FAILED = 8
# Files that shells execute before anything else.
_SHELLS = ("BASH_ENV", "ENV")
# Told of every Python, whether or not the runs need them.
_LIBRARIES = ("torch", "deepspeed", *TRACKERS.own)

# Valid in any Python, so that an old one can report its version.
_QUESTION = """
import sys
sys.path[:] = [entry for entry in sys.path if entry[:1] == "/" and entry != "/"]
import json
answer = {"executable": sys.executable, "version": "%d.%d.%d" % tuple(sys.version_info[:3])}
try:
    from importlib import metadata, util
except ImportError:
    metadata = util = None
for name in LIBRARIES:
    answer[name] = None
    try:
        if util is not None and getattr(util.find_spec(name), "origin", None):
            answer[name] = "unknown"
            answer[name] = metadata.version(name)
    except Exception:
        pass
try:
    scope = {}
    exec(SOURCE, scope)
    answer["packages"] = scope["installed"](sys.path)
except Exception:
    pass
answer["missing"] = []
for name in sys.argv[1:]:
    try:
        if util is not None and util.find_spec(name) is None:
            answer["missing"].append(name)
    except Exception:
        pass
"""


@dataclass(frozen=True)
class Probe:
    """The answer of a Python."""

    executable: str
    """``sys.executable``."""
    version: str | None
    """Such as ``3.11.2``; None if it was not started."""
    libraries: dict[str, str | None]
    """Versions of torch, deepspeed and the trackers; None if they are not installed."""
    unchecked: str | None = None
    """The reason why it was not started."""
    missing: tuple[str, ...] = ()
    """The modules that it was asked for and does not have."""
    failed_setup: tuple[str, ...] = ()
    """``module load cuda ended with exit code 1``, for each command of the setup lines that did."""
    packages: Mapping[str, str] | None = None
    """Name -> version of all that is installed there; None if it is not known."""

    @property
    def facts(self) -> dict[str, Any]:
        """The record in ``submission.json``."""
        facts = {"executable": self.executable, "version": self.version, **self.libraries}
        more = {"unchecked": self.unchecked, "missing": list(self.missing)}
        return {**facts, **{name: value for name, value in more.items() if value}}


class Unchecked(Exception):
    """The Python is not to be started here."""


def unchecked(submission: SubmissionPaths) -> str | None:
    """Return why a submission's Python was not started; None if it was, or that is not known."""
    try:
        found = files.read_json(submission.submission)["python"].get("unchecked")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def probe(
    python: str,
    *,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    needs: Mapping[str, str] = MappingProxyType({}),
    modules: Sequence[str] = (),
    timeout: float = TIMEOUT,
    inside: Sequence[str] = (),
) -> Probe:
    """Start the job's Python once, and return its version and those of its libraries.

    ``python`` is a path, or a name that PATH has once the job's ``setup`` lines of bash, such as
    ``module load cuda``, have run, and gets the job's ``variables`` after them. ``modules`` are
    looked for, and not imported. ``inside`` are the words that start it in a container. Raise
    UsageError if it does not exist, gives no answer within ``timeout`` seconds, is too old or lacks
    a library that is a key of ``needs``, whose value says what needs it; raise `Unchecked` if it is
    another user's.
    """
    argv = [*inside, python, *_question(needs), *modules]
    key = KEY_INSIDE if inside else KEY
    given = {name: value for name, value in (variables or {}).items() if name not in _SHELLS}
    lines = [_TRAP, *setup, "trap - ERR"] if setup else []
    start = _own_program() if setup else ""
    command, environment = in_job_environment(argv, lines, given, start)
    if not setup:
        found = shutil.which(argv[0], path=environment.get("PATH"))
        if found and found != sys.executable and (owner := permissions.stranger(found)) is not None:
            raise Unchecked(f"{found} belongs to {owner}")
    answer = _answer(command, environment, timeout, f"{key}: {python}", bool(setup))
    data = answer.data
    missing = tuple(data.pop("missing", ()))
    packages = python_packages.read(data.pop("packages", None))
    failed = _failed_setup(answer.output, answer.errors) if setup else ()
    known = data.pop("executable"), data.pop("version")
    probed = Probe(*known, data, None, missing, failed, packages)
    _check(probed, key, python, needs)
    return probed


def probe_both(
    run: RunPlan,
    container: Container,
    setup: Sequence[str],
    variables: Mapping[str, str],
    needs: Mapping[str, str],
    modules: Sequence[str],
) -> Probe:
    """`probe` the Python outside of a container, and return the answer of that in it."""
    probe(str(run.environment.python), setup=setup, variables=variables)
    if runtimes.of(container).is_of_srun:
        raise Unchecked(f"{str(container.runtime).capitalize()} starts containers in jobs alone")
    if container.image and not runtimes.is_path(container.image):
        raise Unchecked("images of registries are not fetched here")
    try:
        owner = permissions.stranger(container.image) if container.image else None
    except OSError as error:
        raise Unchecked(f"the image is not here: {error.strerror}") from None
    if owner is not None:
        raise Unchecked(f"the image belongs to {owner}")
    inside = of_container(
        container, [*map(Mount.parse, container.mounts)], variables, None, probes=True
    )
    found = probe(
        container.python,
        inside=inside.command()[:-1],
        setup=setup,
        variables=variables,
        needs=needs,
        modules=modules,
    )
    packages = {**found.packages, **image_facts(container)} if found.packages else None
    return dataclasses.replace(found, packages=packages)


def in_job_environment(
    argv: Sequence[str],
    setup: Sequence[str],
    variables: Mapping[str, str],
    start: str = 'exec "$@"',
) -> tuple[list[str], dict[str, str]]:
    """Return a command and its environment, so that it finds here what it finds in a job.

    It runs after the job's ``setup`` lines of bash, and has the job's ``variables``, in the same
    order as in the sbatch script; ``start`` are the lines that then execute it.
    """
    environment = clean_environment()
    if not setup:
        return [*argv], {**environment, **variables}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return ["bash", "-lc", "\n".join([*setup, *exports, start]), "bash", *argv], environment


def _question(needs: Iterable[str]) -> tuple[str, str]:
    """Return the words by which a Python is asked to tell of itself and of these libraries."""
    libraries = repr(tuple(dict.fromkeys((*_LIBRARIES, *needs))))
    source = _QUESTION.replace("LIBRARIES", libraries)
    return ask_python.program(source.replace("SOURCE", repr(python_packages.SOURCE)))


def _failed_setup(output: str, words: str) -> tuple[str, ...]:
    found = []
    for line in output.splitlines():
        if line.startswith(_FAILED):
            code, _, command = line.removeprefix(_FAILED).partition(" ")
            found.append(f"`{shortened(one_line(command), 120)}` ended with exit code {code}")
    said = words.strip().splitlines()[-1:]
    return (*dict.fromkeys(found[:_MOST_FAILED]), *(f"it said: {one}" for one in said if found))


def _own_program() -> str:
    """Return lines of bash that execute a program unless it is another user's."""
    mine = " ".join(map(str, sorted(permissions.trusted_users())))
    return f"""
hpcrun_found="$(type -P -- "$1")"
for hpcrun_owner in $(stat -c %u -- "$hpcrun_found"; stat -L -c %u -- "$hpcrun_found"); do
    case " {mine} " in
        *" $hpcrun_owner "*) ;;
        *) printf '\\n{NOT_PROBED}%s\\n' "$hpcrun_found belongs to user $hpcrun_owner"; exit 0 ;;
    esac
done 2>/dev/null
exec "$@"
"""


def _answer(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    python: str,
    with_setup: bool,
) -> PythonAnswer:
    hint = "give the path of a Python that the job can use, one with torch for training"
    try:
        found = ask_python.ask(argv, timeout=timeout, environment=environment)
    except OSError as error:
        raise UsageError(f"{python}: {error.strerror}", hint=hint) from None
    if found.data is not None:
        return found
    for line in found.output.splitlines():
        if line.startswith(NOT_PROBED):
            raise Unchecked(line.removeprefix(NOT_PROBED))
    if found.code is None:
        raise UsageError(
            f"{python} gave no answer within {timeout:g} s",
            hint="try `environment.setup` and this Python by hand",
        )
    after = " after environment.setup" if with_setup else ""
    what = {126: "cannot be executed", 127: "is not there"}.get(found.code, "is no usable Python")
    raise UsageError(
        f"{python} {what}{after} (exit code {found.code}){found.last_errors(5)}", hint=hint
    )


def _check(found: Probe, key: str, python: str, needs: Mapping[str, str]) -> None:
    if tuple(int(part) for part in str(found.version).split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"{key}: {python} is Python {found.version}; it must be {oldest} or newer",
            hint=f"point {key} to a newer one",
        )
    missing = [name for name in needs if found.libraries.get(name) is None]
    if missing:
        names = " and ".join(missing)
        wanting = list(dict.fromkeys(needs[name] for name in missing))
        verb = "needs" if len(wanting) == 1 else "need"
        raise UsageError(
            f"{key}: {python} (Python {found.version}) has no {names}, which "
            f"{' and '.join(wanting)} {verb}",
            hint=f"`{found.executable} -m pip install {' '.join(missing)}`, or point {key} to a "
            "Python that has them"
            if key == KEY
            else "build an image that has them, or mount a Python that does",
        )
