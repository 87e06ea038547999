"""Two real users: commands as an ordinary user, and files that are somebody else's.

Only root can be other users; `needs_root` skips a test for everybody else. `ME` is the user whom a
test defends, `STRANGER` the one who attacks; no file of a Linux that matters is theirs.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import command

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")

# The Python of the tests may lie in root's home; that of the system does with its libraries.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
MODULES = f"{Path(__file__).parents[2]}:{sysconfig.get_path('purelib')}"
# A group of every Linux, that users of a test may share.
TEAM = "users"


@dataclass(frozen=True)
class User:
    """An ordinary user of this machine, by name."""

    name: str

    @property
    def uid(self) -> int:
        return pwd.getpwnam(self.name).pw_uid

    @property
    def gid(self) -> int:
        return pwd.getpwnam(self.name).pw_gid

    def options(
        self, home: Path, *, team: bool = False, env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the options of `subprocess.Popen` by which a process is this user's.

        Parameters
        ----------
        home
            The user's home directory, which is also where caches would go.
        team
            Whether the user is in the group `TEAM`.
        env
            What to add to a clean environment.
        """
        clean = {
            **{"PATH": os.environ["PATH"], "PYTHONPATH": MODULES, "HOME": str(home)},
            **{"USER": self.name, "LOGNAME": self.name, "LANG": "C.UTF-8"},
        }
        return {
            **{"user": self.uid, "group": self.gid, "env": {**clean, **(env or {})}},
            "extra_groups": [grp.getgrnam(TEAM).gr_gid] if team else [],
        }

    def hpcrun(
        self,
        *arguments: str | Path,
        home: Path,
        team: bool = False,
        env: Mapping[str, str] | None = None,
        umask: int = 0o022,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``hpcrun`` to its end as this user; `options` as of `tests.support.command`."""
        mine = self.options(home, team=team, env=env)
        environment = mine.pop("env")
        return command.hpcrun(
            *arguments,
            **{"python": PYTHON, "cwd": home, "umask": umask, "environment": environment},
            **mine,
            **options,
        )

    def run(
        self, argv: Sequence[str | Path], *, home: Path, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run any command to its end as this user (``PYTHON`` is one that the user may start)."""
        mine = self.options(home, env=options.pop("env", None))
        settings: dict[str, Any] = {"cwd": home, "stdin": subprocess.DEVNULL, **mine, **options}
        return subprocess.run(
            [*map(str, argv)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **settings,
        )

    def owns(self, *paths: Path) -> None:
        """Make files, and directories with all that is in them, this user's; follow no link."""
        for path in paths:
            for each in (path, *(path.rglob("*") if path.is_dir() else ())):
                os.chown(each, self.uid, self.gid, follow_symlinks=False)

    def write(self, path: Path, text: str = "", mode: int = 0o644) -> Path:
        """Write a file that is this user's, in directories (where they are missing) too."""
        missing = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        for each in (path, *missing):
            os.chown(each, self.uid, self.gid)
        return path


@functools.cache
def _usable() -> bool:
    return ME.hpcrun("--version", home=Path("/")).returncode == 0


ME, STRANGER = User("daemon"), User("bin")


@contextlib.contextmanager
def open_place() -> Iterator[Path]:
    """A directory that every user may reach and write to, as pytest's are root's alone.

    Skips the test where an ordinary user cannot use hpcrun with the system's Python.
    """
    with tempfile.TemporaryDirectory(prefix="hpcrun-users-") as directory:
        place = Path(directory).resolve()
        place.chmod(0o1777)
        if not _usable():
            pytest.skip("an ordinary user cannot use hpcrun with the system's Python")
        yield place
