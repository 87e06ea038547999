"""The start of a rank in a frozen environment: finds that on its node, and becomes its Python.

It runs once a rank from shared storage, and so imports next to nothing.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import sys
from collections.abc import Mapping

from hpcrun.state.environment.environment_names import COMPLETE, PYTHON, RECORD

_PACKAGE = "hpcrun.zip"


def variables(root: str, inherited: Mapping[str, str], package: str = "") -> dict[str, str]:
    """Return the environment variables of a process in a frozen environment.

    Parameters
    ----------
    root
        Where it is unpacked.
    inherited
        The variables of processes outside of it.
    package
        The node's copy of hpcrun, where there is one.
    """
    with open(f"{root}/{RECORD}", encoding="utf-8", errors="surrogateescape") as stream:
        moved = json.load(stream)["moved"]
    own = f"{root}/{posixpath.dirname(PYTHON)}"
    outside = posixpath.dirname(sys.executable)
    found = {name: value for name, value in inherited.items() if name != "PYTHONHOME"}
    path = inherited.get("PATH", os.defpath).split(os.pathsep)
    found["PATH"] = os.pathsep.join([own, *(each for each in path if each not in (own, outside))])
    found["VIRTUAL_ENV"] = root
    if "CONDA_PREFIX" in found:
        found["CONDA_PREFIX"] = root
    # Python's own packages of a user are on shared storage, and were frozen with the others.
    found["PYTHONNOUSERSITE"] = "1"
    entries = []
    for each in inherited.get("PYTHONPATH", "").split(os.pathsep):
        if package and posixpath.basename(each) == _PACKAGE:
            entries.append(package)
        elif each in moved:
            entries.append(f"{root}/{moved[each]}")
        else:
            entries.append(each)
    found["PYTHONPATH"] = os.pathsep.join(entries)
    return found


def is_mine_and_complete(root: str) -> bool:
    """Check a copy that is looked for where another node has it: anybody may have made that."""
    home = posixpath.dirname(posixpath.dirname(root))
    try:
        found = os.lstat(home)
        os.lstat(f"{home}/{COMPLETE}")
    except OSError:
        return False
    return found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o77


def main() -> None:
    """Entry point of ``python -S -m hpcrun.run.frozen_python LAUNCH …``: acts like the worker."""
    arguments = sys.argv[1:]
    with open(arguments[0], encoding="utf-8") as stream:
        launch = json.load(stream)
    if "--rank" in arguments:
        rank = int(arguments[arguments.index("--rank") + 1])
    else:
        rank = int(os.environ["SLURM_PROCID"])
    nodes, index = launch["nodes"], rank // launch["ranks_per_node"]
    is_spare = False
    if "--warm" in arguments:
        own = arguments[arguments.index("--warm") + 1].split(",")[index]
        names = [node["name"] for node in nodes]
        is_spare = own not in names
        index = 0 if is_spare else names.index(own)
    # Where Slurm started more ranks than there are, the worker says so.
    node = nodes[min(index, len(nodes) - 1)]
    python = node["python"]
    root = python[: -len(PYTHON) - 1]
    if is_spare and not is_mine_and_complete(root):
        sys.exit(f"no warm rank: this node has no copy of the environment in {root}")
    package = "" if is_spare else f"{node['scratch']}/{_PACKAGE}"
    environment = variables(root, os.environ, package)
    os.execve(python, [python, "-m", "hpcrun.run.worker", *arguments], environment)


if __name__ == "__main__":
    main()
