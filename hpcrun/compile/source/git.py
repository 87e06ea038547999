"""Questions about a git checkout, all asked in one way that executes nothing of the checkout's.

A checkout's own configuration and attributes may name programs: a file system monitor, filters,
hooks, helpers of a remote. Whoever made the checkout chose them, so none of them is started.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun.errors import UsageError
from hpcrun.state import permissions

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 20.0
# Seconds until a look is taken at what git may be waiting for, in so many directories.
_PATIENCE = 3.0
_MOST_DIRECTORIES = 20_000
_READ_BY_GIT = (".gitignore", ".gitattributes")

_OFF = (
    *("core.fsmonitor=", "core.hooksPath=/dev/null", "core.pager=cat", "core.sshCommand=false"),
    *("credential.helper=", "protocol.allow=never", "submodule.recurse=false", "diff.external="),
)
_VARIABLES = {
    # Writes no index, so that no hook hears of one.
    "GIT_OPTIONAL_LOCKS": "0",
    # A partial clone fetches what it lacks with programs of its own.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
}


def ask(
    directory: Path, *arguments: str, timeout: float = TIMEOUT, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes] | None:
    """Run git in ``directory``; None if git is missing or gives no answer in time.

    ``given`` is its input.

    The settings of the site and of the user hold, such as ``safe.directory``, by which git uses no
    checkout of another user. Raises UsageError if git waits for what is not a regular file.
    """
    import subprocess  # completion imports this module, and asks git nothing

    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    switches = [word for setting in _OFF for word in ("-c", setting)]
    try:
        process = subprocess.Popen(
            ["git", "-C", str(directory), "--no-pager", *switches, *arguments],
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **_VARIABLES},
        )
    except OSError:
        return None
    with process:
        try:
            for patience in (min(timeout, _PATIENCE), timeout):
                try:
                    output, errors = process.communicate(given, timeout=patience)
                except subprocess.TimeoutExpired:
                    _check_waiting(directory)
                else:
                    code = process.returncode
                    return subprocess.CompletedProcess(process.args, code, output, errors)
        finally:
            process.kill()
    return None


def _check_waiting(directory: Path) -> None:
    """Raise UsageError if git waits for a file around or below ``directory``, such as a FIFO."""
    top = top_level(directory) or directory
    around = [up / name for up in directory.parents for name in _READ_BY_GIT]
    below = (
        Path(here, name)
        for (here, _, files), _ in zip(os.walk(directory), range(_MOST_DIRECTORIES), strict=False)
        for name in _READ_BY_GIT
        if name in files
    )
    for path in (top / ".git" / "info" / "exclude", *around, *below):
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            found = "is not a regular file, and git waits for it"
            raise UsageError(f"{path} {found}", hint="remove it")


def line(directory: Path, *arguments: str) -> str | None:
    """Return what git prints; None if that is nothing, or git fails."""
    answer = ask(directory, *arguments)
    if answer is None or answer.returncode:
        return None
    return os.fsdecode(answer.stdout).strip() or None


def top_level(path: Path) -> Path | None:
    """Return the checkout around ``path``: the nearest directory above that holds ``.git``.

    One that a stranger made in ``/tmp`` does not count.
    """
    for up in (path, *path.parents):
        if (up / ".git").exists() and not permissions.is_planted(up / ".git"):
            return up
    return None


def is_ignored(path: Path, checkout: Path) -> bool:
    """Return whether git ignores ``path``; False where git cannot be asked."""
    answer = ask(checkout, "check-ignore", "-q", "--", str(path))
    return answer is not None and answer.returncode == 0


def is_dirty(directory: Path, *, timeout: float = TIMEOUT) -> bool:
    """Return whether files below ``directory`` differ from its commit; True if git cannot tell.

    Files are compared without the filters that attributes name (git-lfs), and without looking into
    submodules, each of which can be asked by itself.
    """
    named = ask(directory, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    if named is None or named.returncode not in (0, 1):
        return True
    drivers = {name.rpartition(".")[0] for name in os.fsdecode(named.stdout).split("\0") if name}
    if any("=" in driver for driver in drivers):
        return True  # `-c` cannot name it
    off = [
        word
        for driver in sorted(drivers)
        for key in ("clean=", "smudge=", "process=", "required=false")
        for word in ("-c", f"{driver}.{key}")
    ]
    status = ["status", "--porcelain", "-z", "--ignore-submodules=dirty", "--", "."]
    answer = ask(directory, *off, *status, timeout=timeout)
    return answer is None or answer.returncode != 0 or bool(answer.stdout)
