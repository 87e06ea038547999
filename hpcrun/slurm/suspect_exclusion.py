"""The suspect nodes that a job excludes, as far as its partition allows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.slurm import client, hostlist
from hpcrun.state import suspect_nodes
from hpcrun.state.spec.executors import Executor
from hpcrun.state.suspect_nodes import SuspectChoice, SuspectNodes

# Marked with * it does not answer, with $ it is under maintenance.
_USABLE = re.compile(r"(?:idle|mix|alloc|comp|plnd|planned|resv|reserved)[a-z]*[^\w*$]*")
# Questions to Slurm whether the job could start at all.
_TRIES = 4


def left_out(
    cluster: Mapping[str, Any],
    root: Path,
    resources: Any,
    needed: int,
    *,
    script: Path | None = None,
) -> SuspectChoice:
    """Return which suspect nodes a job leaves out; asks Slurm only where there are entries.

    ``resources`` are the run's, ``needed`` its nodes, spares too; ``script`` is tried with the
    exclusion if it is given, as Slurm holds a job for good that excludes too many nodes.
    """
    block = cluster.get("suspects") or {}
    if not block.get("avoid", True) or Executor.of(cluster).is_here:
        return SuspectChoice()
    suspects = SuspectNodes(root).read()
    if not suspects:
        return SuspectChoice()
    partition = str(resources.partition or client.default_partition())
    rows = client.nodes(partition) if partition else []
    excluded = _nodes(resources.exclude)
    nodes = {row["name"] for row in rows} - excluded
    usable = {row["name"] for row in rows if _USABLE.fullmatch(row["state"])} & nodes
    wanted = _nodes({**cluster.get("sbatch", {}), **resources.sbatch}.get("nodelist"))
    choice = suspect_nodes.choose(suspects, nodes, needed, wanted=wanted, usable=usable)
    for left in range(_TRIES if script else 0, 0, -1):
        names = exclusion(resources.exclude, choice)
        if not names or not client.leaves_too_few(str(script), partition, needed, names):
            break
        # The last time all of them.
        for node in choice.nodes[-1:] if left > 1 else choice.nodes:
            choice = choice.without(node, "as too few nodes like the job's would be left")
    return choice


def beside(
    out: Sequence[str], cluster: Mapping[str, Any], root: Path, resources: Any, needed: int
) -> tuple[str, ...]:
    """Return the nodes that a job is to leave out as it is requeued, to do without those ``out``.

    An exclusion takes the place of the one before, which had the suspect nodes: they come first.
    Without any in ``out`` there is none, and the one before stays.
    """
    known = left_out(cluster, root, resources, needed).nodes if out else ()
    return (*(node for node in known if node not in out), *out)


def exclusion(own: str | None, choice: SuspectChoice) -> str | None:
    """Return sbatch's ``--exclude``: the spec's own and the suspects; None to leave it alone."""
    return ",".join(filter(None, (own, *choice.nodes))) if choice.out else None


def _nodes(names: object) -> set[str]:
    try:
        return set(hostlist.expand(str(names))) if names else set()
    except HpcrunError:
        return set()
