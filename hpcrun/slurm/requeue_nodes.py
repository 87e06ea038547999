"""How many nodes a job can do without: one that excludes too many never starts again.

Slurm takes such an exclusion, finds that the nodes left are too few, and holds the job for good
(``BadConstraints``). Seen on 24.11. ``sbatch --test-only`` tells, but says the same of nodes that
are only down for now, so nodes like those that the job had are counted first.

Standard library only, as `hpcrun.slurm.job`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.slurm import client
from hpcrun.text import Say

_TIMEOUT = 8.0
_TOO_FEW = re.compile(r"requested (node|topology) configuration is not available", re.IGNORECASE)
_USABLE = re.compile(r"idle|mix|alloc|comp")


def without(
    job: str,
    nodes: Sequence[str],
    needed: int,
    *,
    kept: str | None,
    say: Say,
) -> tuple[str, ...]:
    """Those of some nodes that a job can exclude and still be started some day.

    Nodes that Slurm could use now are given back before those it could not, the one that was lost
    first before the others.

    Parameters
    ----------
    job
        ``123`` or ``123_4``; it runs or waits.
    nodes
        In the order in which they were lost.
    needed
        Nodes of the job.
    kept
        The job's own ``--exclude``, as a host list.

    Returns
    -------
    tuple of str
        All of them where Slurm does not say.
    """
    shown = client.show("job", job, timeout=_TIMEOUT) if nodes else {}
    if "Command" not in shown or "Partition" not in shown:
        return tuple(nodes)
    usable = _like(nodes, shown["Partition"])
    if not kept and len(usable.keys() - set(nodes)) >= needed:
        return tuple(nodes)
    asked = ["sbatch", "--test-only", f"--partition={shown['Partition']}", f"--nodes={needed}"]
    left = list(nodes)
    for back in sorted(nodes, key=lambda node: not usable.get(node)):
        out = ",".join([*([kept] if kept else []), *left])
        try:
            client.command([*asked, f"--exclude={out}", shown["Command"]], timeout=_TIMEOUT)
            break
        except client.CommandFailed as error:
            if not _TOO_FEW.search(str(error)):
                break
        left.remove(back)
        say(f"{back} is not excluded: too few nodes would be left")
    return tuple(left)


def _like(nodes: Sequence[str], partition: str) -> dict[str, bool]:
    """The partition's nodes that are made as some of these are, and whether each can be used now.

    These were given to the job, so others like them will do.
    """
    argv = ["sinfo", "--noheader", "--Node", f"--partition={partition}"]
    try:
        text = client.command([*argv, "--format=%N|%t|%c|%m|%G|%f"], timeout=_TIMEOUT)
    except client.CommandFailed:
        return {}
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    builds = {build for name, _, build in rows if name in nodes}
    return {name: bool(_USABLE.fullmatch(state)) for name, state, build in rows if build in builds}
