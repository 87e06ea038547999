"""The ``umask`` and ``group`` of an experiment's files.

An experiment's directory gets the group of its cluster profile and the setgid bit, by which all
that is made in it later has that group. The umask is set by submit and by each supervisor, before
they write; Slurm passes it on to steps, and to the files that it opens for their output.
"""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError


def use_umask(cluster: Mapping[str, Any]) -> None:
    """Apply the profile's umask to this process and all that it starts."""
    if cluster.get("umask"):
        os.umask(int(cluster["umask"], 8))
        # sbatch and srun would pass on this one in place of the process's own.
        os.environ.pop("SLURM_UMASK", None)


def group_id(cluster: Mapping[str, Any]) -> int | None:
    """Return the number of the profile's group; None if it names no group.

    Raises UsageError if there is no such group, or this user is not in it.
    """
    name = cluster.get("group")
    if not name:
        return None
    mine = {os.getegid(), *os.getgroups()}
    hint = f"yours are {', '.join(sorted(map(_name, mine)))}; leave group out to keep your own"
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(
            f"the cluster profile '{cluster.get('name')}' has group: {name}, and there is no such "
            "group here",
            hint=hint,
        ) from None
    if number not in mine:
        raise UsageError(
            f"the cluster profile '{cluster.get('name')}' has group: {name}, and you are not in it",
            hint=hint,
        )
    return number


def give(directories: Iterable[Path], group: int) -> None:
    """Give directories of this user, and all that is made in them later, to a group.

    Raises OSError if the file system refuses.
    """
    for directory in directories:
        found = directory.stat()
        if found.st_uid == os.geteuid() and not (
            found.st_gid == group and found.st_mode & stat.S_ISGID
        ):
            os.chown(directory, -1, group)
            directory.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISGID)


def adopt(experiment: Path, group: int) -> None:
    """Give an experiment's existing directories to a group, with the mode of this umask.

    Files stay as they are. Raises OSError if the file system refuses.
    """
    found = experiment.stat()
    if found.st_gid == group and found.st_mode & stat.S_ISGID:
        return
    umask = os.umask(0)
    os.umask(umask)
    inside = [Path(parent) for parent, _, _ in os.walk(experiment) if Path(parent) != experiment]
    for directory in inside:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(mode | (0o777 & ~umask))
    # The experiment's own comes last: it marks that all of them are done.
    give([*inside, experiment], group)


def _name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
