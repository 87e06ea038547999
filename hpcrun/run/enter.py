"""Become a command in a container: the runtime's command line is made on the node.

`hpcrun.container.rank_python` has it started: for ranks, and for what else needs their Python. What
the site's modules and shells set for the programs of the host does not go inside, and is kept under
other names for ``hpcrun exec``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from hpcrun.container import runtimes
from hpcrun.container.rank_python import NOT_PROBED, OUTSIDE
from hpcrun.container.runtimes import Mount, RuntimeProgram
from hpcrun.errors import EXIT_OK, HpcrunError
from hpcrun.run.protocol import stop_flag
from hpcrun.state import permissions
from hpcrun.state.environment.environment_block import Container

# Paths of the host's programs, and files that shells execute before anything else.
_OF_THE_HOST = (
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "BASH_ENV", "ENV"),
)
_NOT_STARTED = 127


def program(container: Container, *, own: bool = False) -> str:
    """Return the path of a container's runtime; raise HpcrunError if it is not on PATH.

    With ``own``, raise it too if the program is another user's.
    """
    names = runtimes.of(container).programs
    for name in names:
        if found := _which(name, own=own):
            return found
    raise HpcrunError(
        f"{os.uname().nodename} has no {' or '.join(names)} on PATH, which starts containers of "
        f"the runtime {container.runtime}",
        hint="load it in environment.setup, or name another environment.container.runtime",
    )


def _which(name: str, *, own: bool) -> str | None:
    found = shutil.which(name)
    if found and own and (owner := permissions.stranger(found)) is not None:
        raise HpcrunError(f"{found} belongs to {owner}")
    return found


def check(container: Container, mounts: list[Mount]) -> None:
    """Raise HpcrunError if the image, or what is to be mounted, is not on this node."""
    node = os.uname().nodename
    if runtimes.is_path(container.image) and not Path(container.image).exists():
        raise HpcrunError(
            f"environment.container.image: there is no {container.image} on {node}",
            hint="put the image where all nodes see it",
        )
    if runtimes.of(container).needs_directory and not Path(container.image).is_dir():
        raise HpcrunError(
            f"environment.container.image: {container.image} is no directory, as "
            f"{container.runtime} needs",
            hint="unpack it, or start it with charliecloud or apptainer",
        )
    for mount in mounts:
        if not Path(mount.source).exists():
            raise HpcrunError(
                f"environment.container.mounts: there is no {mount.source} on {node}",
                hint="mount what all nodes see",
            )


def argv(
    container: Container, mounts: list[Mount], words: list[str], *, own: bool = False
) -> list[str]:
    """Return the runtime's command line on this node; raise HpcrunError if it lacks something."""
    base = tempfile.gettempdir()
    shown = [Mount(base, base), *mounts]
    check(container, shown)
    if not runtimes.of(container).programs:
        for name in container.command[:1]:
            _which(name, own=own)
        return runtimes.command(container, RuntimeProgram(""), shown, words)
    path = program(container, own=own)
    gpus = "nvidia" if Path("/proc/driver/nvidia/version").exists() else None
    gpus = gpus or ("amd" if Path("/dev/kfd").exists() else None)
    return runtimes.command(
        container, RuntimeProgram(path, partial(_can, path), gpus), shown, words
    )


def _can(path: str, option: str) -> bool:
    asked = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    return option in asked.stdout + asked.stderr


def change_environment(container: Container, given: list[str]) -> None:
    """Leave to the container what is its own."""
    for name in _OF_THE_HOST:
        if name in os.environ and name not in given:
            os.environ[OUTSIDE + name] = os.environ[name]
            # The others find their helpers by it, and give the container the image's.
            if name != "PATH" or runtimes.of(container).keeps_path:
                del os.environ[name]
    if "PATH" not in os.environ:
        python = os.path.dirname(container.python)  # noqa: PTH120
        os.environ["PATH"] = f"{python}:{runtimes.PATH}" if python else runtimes.PATH
    # ch-run refuses to start without.
    os.environ.setdefault("USER", str(os.geteuid()))


def main() -> int:
    # The word between them is ``--``.
    told, _, *words = sys.argv[1:]
    data = json.loads(told)
    container = Container(**data["container"])
    command: list[str] = []
    mounts = [Mount(*one) for one in data["mounts"]]
    try:
        command = argv(container, mounts, words, own=data["probes"])
        path = shutil.which(command[0]) or command[0]
        change_environment(container, data["given"])
        # The runtime may stay as a parent, which Slurm's signals are not to end.
        for number in stop_flag.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if runtimes.of(container).catches_stop:
            signal.pthread_sigmask(signal.SIG_BLOCK, stop_flag.SIGNALS)
        os.chdir("/")
        os.execv(path, command)
    except HpcrunError as error:
        if data["probes"]:
            print(f"\n{NOT_PROBED}{error.message}")
            return EXIT_OK
        print(f"hpcrun: {error.message}" + (f"; {error.hint}" if error.hint else ""))
    except OSError as error:
        print(f"hpcrun: {error.filename or command[0]} cannot be used: {error.strerror}")
    return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
