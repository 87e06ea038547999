"""Which nodes ``hpcrun doctor --nodes`` tests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcrun.errors import UsageError
from hpcrun.site import slurm_records
from hpcrun.site.slurm_site import SlurmNode, SlurmPartition, SlurmSite
from hpcrun.text import listed, plural, shortened, whole_number

# Without a number: as many as are idle, but not more; and the most at once.
IDLE = "idle"
_MOST_IDLE, _MOST = 16, 512
# Flags of a node that is idle, not out, and starts no job now. Others, such as CLOUD, only say what
# it is; one that is POWERED_DOWN boots for a job.
_FLAGS = """
PLANNED RESERVED RES COMPLETING MAINTENANCE NO_RESPOND BLOCKED EXTERNAL POWERING_DOWN POWER_DRAIN
REBOOT_REQUESTED REBOOT_ISSUED REBOOTING
"""
_NOT_NOW = frozenset(_FLAGS.split())


@dataclass(frozen=True)
class NodeChoice:
    """What the job asks for."""

    partition: str
    count: int
    names: tuple[str, ...] = ()
    """Empty where Slurm chooses."""
    gpus: int = 0
    """GPUs that each of the nodes has."""
    notes: tuple[str, ...] = ()


def choose(words: str, partition: str | None, site: SlurmSite) -> NodeChoice:
    """Return the choice for ``--nodes WORDS``: a number, names such as ``node[01-04]``, or `IDLE`.

    Raises UsageError for what is neither, and for nodes that are not there.
    """
    if words == IDLE or whole_number(words) is not None:
        return _some(words, _partition(partition, site), site)
    names = tuple(dict.fromkeys(slurm_records.nodes(words)))
    if not names:
        shown = shortened(words, 80)
        raise UsageError(
            f"--nodes: found {shown!r}; accepted is a number, or names such as node[01-04],n7",
            hint="`hpcrun doctor --nodes` tests nodes that are idle now",
        )
    unknown = [name for name in names if name not in site.nodes]
    if unknown:
        raise UsageError(
            f"--nodes: there is no node {listed(unknown, 4)}",
            hint=f"the cluster's nodes are {listed(sorted(site.nodes), 8)}",
        )
    chosen = _holding(names, partition, site)
    notes = [
        f"{name} is {'+'.join(sorted(site.nodes[name].state))}: the job waits until it is back"
        for name in names
        if site.nodes[name].is_out
    ]
    return NodeChoice(
        chosen.name, len(names), names, _gpus([site.nodes[n] for n in names]), tuple(notes)
    )


def _some(words: str, partition: SlurmPartition, site: SlurmSite) -> NodeChoice:
    there = [node for node in site.nodes_of(partition) if not node.is_out]
    idle = [node for node in there if "IDLE" in node.state and not node.state & _NOT_NOW]
    notes: tuple[str, ...] = ()
    if words == IDLE:
        count = min(len(idle), _MOST_IDLE, partition.max_nodes or _MOST_IDLE)
        if not count:
            count = min(2, len(there))
            notes = (f"no node of {partition.name} is idle: the job waits for {count}",)
        count = max(1, count)
    else:
        count = int(words)
        if not 1 <= count <= _MOST:
            raise UsageError(f"--nodes: found {words}; accepted is 1 to {_MOST}")
    if count > len(there):
        raise UsageError(
            f"--nodes: found {count}; the partition {partition.name} has "
            f"{plural(len(there), 'node')} in service",
            hint="ask for fewer, or name another partition with --partition",
        )
    return NodeChoice(partition.name, count, (), _gpus(there), notes)


def _partition(name: str | None, site: SlurmSite) -> SlurmPartition:
    found = site.default_partition() if name is None else site.partitions.get(name)
    if found is None:
        known = listed(sorted(site.partitions), 8)
        said = f"there is no partition {name!r}" if name else "there is no default partition"
        raise UsageError(f"--partition: {said}", hint=f"accepted are {known}")
    return found


def _holding(names: Sequence[str], wanted: str | None, site: SlurmSite) -> SlurmPartition:
    """Return the partition to test nodes in: the one asked for, or one that has all of them."""
    if wanted is not None:
        first = [_partition(wanted, site)]
    else:
        first = sorted(site.partitions.values(), key=lambda one: not one.is_default)
    for one in first:
        if set(names) <= set(one.nodes):
            return one
    raise UsageError(
        f"--nodes: no partition{f' {wanted}' if wanted else ''} has all of {listed(names, 8)}",
        hint="test the nodes of one partition at a time",
    )


def _gpus(nodes: Sequence[SlurmNode]) -> int:
    return min((node.gpus_of(None) for node in nodes), default=0)
