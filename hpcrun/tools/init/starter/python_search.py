"""The Pythons of a login node, and which of them can train: no library is imported.

Libraries are found by the names of files; a Python of this user's or root's is then started once,
with the environment that a job has, to confirm it. Another user's is never started.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state import files
from hpcrun.submission import python_probe

# Pythons that are looked at, and of these started; seconds for each.
_MOST, _STARTED, PATIENCE = 48, 12, 20.0
_SMALL = 1 << 16
# Names that are looked at in a directory of libraries.
_MOST_LIBRARIES = 5000
_VERSION_DIRECTORY = re.compile(r"python3\.\d{1,2}")
_NAMES = ("torch", "deepspeed")
_BUILD = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]", re.MULTILINE)
# By origin: the Python that runs hpcrun needs no mention in a spec.
RUNNING = "runs hpcrun"
# Environments that this shell has activated.
_CHOSEN = ("$VIRTUAL_ENV", "$CONDA_PREFIX")
CUDA, ROCM, CPU = "cuda", "rocm", "cpu"


@dataclass(frozen=True)
class FoundPython:
    """A Python, and what of training it has."""

    executable: str
    origin: str
    """Where it was found: `RUNNING`, ``$VIRTUAL_ENV``, ``conda``, ``pyenv``, ``PATH``, …"""
    version: str | None = None
    """None where it was not started."""
    torch: str | None = None
    deepspeed: str | None = None
    build: str = ""
    """What its torch computes on: ``cuda``, ``rocm`` or ``cpu``; empty where that is not known."""
    problem: str = ""
    """Why it cannot be used, or was not started; empty where it answered."""
    is_unchecked: bool = False
    """It was not started, and its files tell what it has."""

    @property
    def trains(self) -> bool:
        """Check whether it has all that a training function needs."""
        return bool(self.torch and self.deepspeed) and (self.is_unchecked or not self.problem)

    @property
    def lacks(self) -> str:
        """The libraries that it has not: ``torch and deepspeed``."""
        return " and ".join(name for name in _NAMES if not getattr(self, name))


def search(environ: Mapping[str, str], directory: Path) -> list[FoundPython]:
    """Return the Pythons of this user's and of PATH, in the order in which they are preferred.

    Those that are nobody's choice (conda, pyenv, PATH) are left out if they have no torch.
    ``directory`` is the project's, which may have a virtual environment.
    """
    places = list(islice(_candidates(environ, directory), _MOST))
    looked = [_look(one) for one in places]
    wanted = [one for one in looked if one.torch or one.origin in (RUNNING, *_CHOSEN)]
    asked = [BackgroundCall(functools.partial(_start, one)) for one in wanted[:_STARTED]]
    rest = [_not_started(one, "not started: there are many") for one in wanted[_STARTED:]]
    return [*(task.result() for task in asked), *rest]


def _candidates(environ: Mapping[str, str], directory: Path) -> Iterator[FoundPython]:
    """Yield the Pythons that there are, each once."""
    seen: set[str] = set()
    for path, origin in _places(environ, directory):
        # Links of one environment are one; environments of one interpreter are several.
        known = f"{os.path.realpath(path.parent)} {os.path.realpath(path)}"
        if known not in seen and os.access(path, os.X_OK) and path.is_file():
            seen.add(known)
            yield FoundPython(str(path), origin)


def _places(environ: Mapping[str, str], directory: Path) -> Iterator[tuple[Path, str]]:
    yield Path(sys.executable), RUNNING
    for name in _CHOSEN:
        if environ.get(name[1:], "").startswith("/"):
            yield Path(environ[name[1:]], "bin/python"), name
    for name in (".venv", "venv"):
        yield directory / name / "bin/python", f"{name} of the project"
    for one in environ.get("PATH", "").split(":"):
        if one.startswith("/"):
            yield Path(one, "python3"), "PATH"
            yield Path(one, "python"), "PATH"
    home = Path(environ.get("HOME") or "/")
    if home == Path("/"):
        return
    yield from ((home / one / "bin/python", "in your home") for one in ("venv", ".venv"))
    for one in _lines(home / ".conda/environments.txt"):
        if one.startswith("/"):
            yield Path(one, "bin/python"), "conda"
    for base in ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba"):
        yield home / base / "bin/python", "conda"
        yield from ((one / "bin/python", "conda") for one in _inside(home / base / "envs"))
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    yield from ((one / "bin/python", "pyenv") for one in _inside(pyenv / "versions"))
    for holder in (home / ".virtualenvs", home / "venvs", home / "envs"):
        yield from ((one / "bin/python", "in your home") for one in _inside(holder))


def _inside(directory: Path) -> list[Path]:
    return sorted(directory / name for name in _names(directory, _MOST))


def _names(directory: Path, most: int) -> list[str]:
    """Return at most so many names in a directory; none where it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return [one.name for one in islice(entries, most)]
    except OSError:
        return []


def _lines(path: Path) -> list[str]:
    try:
        found = files.read_bytes(path, _SMALL).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in found if "\0" not in line]


def _look(python: FoundPython) -> FoundPython:
    """Fill in the libraries of a Python that files tell of."""
    directories = list(dict.fromkeys(_libraries(python)))
    versions = {name: _installed(name, directories) for name in _NAMES}
    found = replace(python, torch=versions["torch"], deepspeed=versions["deepspeed"])
    return replace(found, build=_build(found.torch, directories)) if found.torch else found


def _libraries(python: FoundPython) -> Iterator[Path]:
    """Yield the directories in which a Python looks for libraries."""
    if python.origin == RUNNING:
        yield from (Path(one) for one in sys.path if one.startswith("/"))
        yield Path(sysconfig.get_paths()["purelib"])
        return
    prefix = Path(python.executable).parent.parent
    own = list(_site_packages(prefix))
    yield from own
    for directory in own:
        yield from _linked(directory)
    settings = {
        key.strip(): value.strip()
        for key, sign, value in (line.partition("=") for line in _lines(prefix / "pyvenv.cfg"))
        if sign
    }
    if settings.get("include-system-site-packages", "").lower() == "true":
        yield from _site_packages(Path(settings.get("home", "/usr/bin")).parent)


def _site_packages(prefix: Path) -> Iterator[Path]:
    for library in ("lib", "lib64"):
        for one in _inside(prefix / library):
            if _VERSION_DIRECTORY.fullmatch(one.name):
                yield one / "site-packages"
                yield one / "dist-packages"


def _linked(directory: Path) -> Iterator[Path]:
    """Yield the directories that ``.pth`` files add."""
    links = [name for name in _names(directory, _MOST_LIBRARIES) if name.endswith(".pth")]
    for name in links[:_MOST]:
        yield from (Path(one) for one in _lines(directory / name) if one.startswith("/"))


def _installed(name: str, directories: Iterable[Path]) -> str | None:
    """Return the version of a library by its ``NAME-VERSION.dist-info``; None without one."""
    for directory in directories:
        for one in _names(directory, _MOST_LIBRARIES):
            start, _, end = one.partition("-")
            if start.lower() == name and end.endswith((".dist-info", ".egg-info")):
                return end.rpartition(".")[0].partition("-py")[0]
    return None


def _build(version: str, directories: Iterable[Path]) -> str:
    """Return the devices that a torch was built for, by its version or its ``version.py``."""
    _, _, local = version.partition("+")
    for begin, build in (("cpu", CPU), ("cu", CUDA), ("rocm", ROCM)):
        if local.startswith(begin):
            return build
    for directory in directories:
        text = "\n".join(_lines(directory / "torch/version.py"))
        if text:
            found = _BUILD.search(text)
            return {"cuda": CUDA, "hip": ROCM}[found[1]] if found else CPU
    return ""


def _start(python: FoundPython) -> FoundPython:
    """Start a Python, and fill in what it says of itself."""
    try:
        told = python_probe.probe(python.executable, timeout=PATIENCE)
    except python_probe.Unchecked as error:
        return _not_started(python, f"not started: {error}")
    except UsageError as error:
        return replace(python, problem=error.message.removeprefix("environment.python: "))
    torch, deepspeed = (told.libraries.get(name) for name in _NAMES)
    known = replace(python, version=told.version, torch=torch, deepspeed=deepspeed)
    return known if torch else replace(known, build="")


def _not_started(python: FoundPython, why: str) -> FoundPython:
    return replace(python, problem=why, is_unchecked=True)


def choose(found: Iterable[FoundPython]) -> FoundPython | None:
    """Return the first that can train, those that were started before the others."""
    usable = [one for one in found if one.trains]
    return min(usable, key=lambda one: one.is_unchecked, default=None)
