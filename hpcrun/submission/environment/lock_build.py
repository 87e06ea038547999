"""A virtual environment that is built from a lock, by uv where there is one, else by pip."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun import activity, host
from hpcrun.errors import UsageError
from hpcrun.state import files, permissions
from hpcrun.state.environment.environment_names import PYTHON
from hpcrun.submission.environment import environment_files
from hpcrun.submission.environment.environment_files import PythonPlace
from hpcrun.submission.python_probe import in_job_environment
from hpcrun.text import Say, listed, one_line

KEY = "environment.lock"
_FORMAT = "lock 1"
_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
_NETWORK = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
_MOST = 20_000_000
_SHOWN = 12


@dataclass(frozen=True)
class EnvironmentLock:
    """A lock as it was read."""

    path: Path
    content: bytes

    @property
    def needs_uv(self) -> bool:
        return self.path.name == "uv.lock" or _PYLOCK.fullmatch(self.path.name) is not None

    def digest(self, place: PythonPlace) -> str:
        """Return the name of the environment that is built from it for this Python."""
        python = (os.path.realpath(place.base), place.version, place.platform)
        parts = [_FORMAT, self.path.name if self.needs_uv else "", *python]
        return hashlib.sha256("\0".join(parts).encode() + b"\0" + self.content).hexdigest()


def read(path: Path) -> EnvironmentLock:
    """Read a lock.

    Raises UsageError if it cannot be read, is another user's, or leaves open what is installed.
    """
    if why := permissions.foreign([path]):
        raise UsageError(
            f"{KEY}: {why}", hint="what it names is installed as you: copy it to a file of yours"
        )
    try:
        found = EnvironmentLock(path, files.read_bytes(path, _MOST))
    except OSError as error:
        raise UsageError(f"{KEY}: {path} cannot be read: {error.strerror or error}") from None
    if not found.needs_uv:
        _check(found)
    return found


def _check(lock: EnvironmentLock) -> None:
    """Raise UsageError unless every line of a requirements file names a version."""
    lines = lock.content.decode(errors="replace").replace("\\\n", " ").splitlines()
    for line in lines:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        word = text.split()[0]
        if word.startswith(("-e", "--editable", "-r", "--requirement", "-c", "--constraint")):
            raise UsageError(
                f"{KEY}: {lock.path} has the line {one_line(text)!r}; a lock names each package "
                "itself",
                hint="write it by `uv pip compile --generate-hashes`, or `pip freeze`",
            )
        if not word.startswith("-") and not re.search(r"[=]=|\s@\s|@\s*(https?|file|git)", text):
            raise UsageError(
                f"{KEY}: {lock.path} has the line {one_line(text)!r}, which leaves the version "
                "open",
                hint="accepted is NAME==VERSION, with --hash=… as `uv pip compile "
                "--generate-hashes` writes it, or NAME @ URL",
            )


@contextlib.contextmanager
def built(
    lock: EnvironmentLock,
    place: PythonPlace,
    setup: Sequence[str],
    variables: Mapping[str, str],
    say: Say,
) -> Iterator[PythonPlace]:
    """Build the environment of a lock, and remove it after the block.

    Raises UsageError, with what uv or pip said, if it cannot be built.
    """
    builder = _Builder(lock, place, setup, variables)
    uv = builder.uv(say)
    if lock.needs_uv and uv is None:
        raise UsageError(
            f"{KEY}: {lock.path.name} is installed by uv, and there is no uv on the job's PATH",
            hint="install uv, or name a requirements file: `uv export --format requirements-txt`",
        )
    with tempfile.TemporaryDirectory(prefix="hpcrun-environment-") as temporary:
        target = Path(temporary, "venv")
        what = f"building the environment of {lock.path.name} with {'uv' if uv else 'pip'}"
        with activity.doing(what):
            if uv is None:
                builder.with_pip(target)
            else:
                builder.with_uv(uv, target)
        for told in builder.missing(uv, target):
            say(f"environment: {told}")
        yield environment_files.ask_place(str(target / PYTHON), setup, variables)


class _Builder:
    def __init__(
        self,
        lock: EnvironmentLock,
        place: PythonPlace,
        setup: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        self._lock, self._place = lock, place
        self._setup, self._variables = setup, {**_of_shell(), **variables}

    def uv(self, say: Say) -> str | None:
        """Return the uv that the job's PATH has; None without one, or if it is another user's."""
        code, output, _ = self._run(["sh", "-c", "command -v uv"])
        found = output.strip().splitlines()[-1:] if code == 0 else []
        if not found or not found[0].startswith("/"):
            return None
        if why := permissions.foreign([Path(found[0])]):
            say(f"environment: {why}, and is not started; pip builds it")
            return None
        return found[0]

    def with_uv(self, uv: str, target: Path) -> None:
        lock = self._lock.path
        self._do([uv, "venv", "--quiet", "--no-project", "--python", self._place.base, str(target)])
        if lock.name == "uv.lock":
            exported = target.with_name("requirements.txt")
            export = [uv, "export", "--frozen", "--quiet", "--no-dev", "--no-emit-project"]
            export += ["--project", str(lock.parent), "--format", "requirements-txt"]
            self._do([*export, "--output-file", str(exported)])
            lock = exported
        python = str(target / PYTHON)
        install = [uv, "pip", "sync", "--quiet", "--link-mode", "copy", "--compile-bytecode"]
        self._do([*install, "--python", python, str(lock)])

    def with_pip(self, target: Path) -> None:
        self._do([self._place.base, "-m", "venv", "--without-pip", str(target)])
        install = [*self._pip(target), "install", "--no-input", "--quiet", "--no-deps"]
        self._do([*install, "-r", str(self._lock.path)])

    def _pip(self, target: Path) -> list[str]:
        """Return the command of a pip for the environment: the base Python's, or one of its own."""
        python = str(target / PYTHON)
        pip = [self._place.base, "-m", "pip", "--disable-pip-version-check", "--python", python]
        if self._run([*pip, "--version"])[0] != 0:
            self._do([python, "-m", "ensurepip"])
            pip = [python, "-m", "pip", "--disable-pip-version-check"]
        return pip

    def missing(self, uv: str | None, target: Path) -> list[str]:
        """Return what the installed packages require and the lock does not have."""
        own = ["pip", "check", "--python", str(target / PYTHON)]
        argv = [*self._pip(target), "check"] if uv is None else [uv, *own]
        code, output, words = self._run(argv)
        if code == 0:
            return []
        said = (output + words).strip().splitlines()
        return [f"the lock is not complete: {listed(said, _SHOWN, '; ')}"]

    def _do(self, argv: Sequence[str]) -> None:
        code, output, words = self._run(argv)
        if code != 0:
            said = "\n".join(
                f"  {line}" for line in (output + words).strip().splitlines()[-_SHOWN:]
            )
            raise UsageError(
                f"{KEY}: {self._lock.path} cannot be installed: {Path(argv[0]).name} ended with "
                f"exit code {code}; it said:\n{said}",
                hint="`environment.venv: frozen` without a lock copies what the job's Python has, "
                "and downloads nothing",
            )

    def _run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        command, environment = in_job_environment(argv, self._setup, self._variables)
        # Paths in a lock are relative to it.
        process = host.start_piped(command, cwd=str(self._lock.path.parent), env=environment)
        output, words = host.answer(process, None) or ("", "")
        return process.returncode, output, words


def _of_shell() -> dict[str, str]:
    """Return what tells uv and pip of this shell where packages come from."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "UV_")) or name.lower() in _NETWORK
    }
