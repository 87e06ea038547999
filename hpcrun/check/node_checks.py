"""Whether a partition has the nodes that a job asks for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpcrun.check import partition_checks
from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.source.problems import did_you_mean
from hpcrun.site import slurm_records as records
from hpcrun.site.slurm_site import SlurmNode, SlurmPartition, SlurmSite
from hpcrun.text import agreeing, listed, plural


@dataclass(frozen=True)
class _Need:
    """One thing that every node of a job has to have."""

    key: str
    wanted: str
    """``16 CPUs``."""
    is_met: Callable[[SlurmNode], bool]
    there: Callable[[Sequence[SlurmNode]], str]
    """Says of a partition's nodes what they have."""
    hint: str


def names(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for each node and feature that a job names and the cluster does not have."""
    for option in ("exclude", "nodelist"):
        if "/" in request[option]:  # the name of a file that lists them
            continue
        unknown = [name for name in records.nodes(request[option]) if name not in site.nodes]
        if unknown:
            found = f"there is no node {listed(unknown, 5)}; the cluster has "
            found += listed(sorted(site.nodes), 6)
            yield Finding(ERROR, request.key(option), found, did_you_mean(unknown[0], site.nodes))
    known = _features(site)
    for feature in sorted(request.features - known):
        accepted = listed(sorted(known), 15) if known else "none"
        found = f"no node has the feature {feature!r}; features of this cluster are: {accepted}"
        yield Finding(ERROR, "resources.constraint", found, did_you_mean(feature, known))


def there_are(request: JobRequest, partition: SlurmPartition, site: SlurmSite) -> Iterator[Finding]:
    """Yield what a partition's nodes lack; a warning where too many of them are out."""
    without = {*records.nodes(request["exclude"])}
    nodes = [node for node in site.nodes_of(partition) if node.name not in without]
    if not nodes:
        found = f"the partition {partition.name} has no node that the job may use"
        yield Finding(ERROR, "resources.partition", found, "choose another partition")
        return
    needs = list(_needs(request, partition, _features(site)))
    lacking = [need for need in needs if not any(map(need.is_met, nodes))]
    for need in lacking:
        found = f"found {need.wanted} a node; {need.there(nodes)} in the partition {partition.name}"
        yield Finding(ERROR, need.key, found, need.hint)
    if lacking:
        return
    fitting = [node for node in nodes if all(need.is_met(node) for need in needs)]
    wanted, kind = request.nodes, listed([need.wanted for need in needs], 8)
    if len(fitting) < wanted:
        such = f" with {kind}" if needs and len(fitting) < len(nodes) else ""
        verb = agreeing(len(fitting), "is", "are")
        yield Finding(
            ERROR,
            "resources.nodes",
            f"found {plural(wanted, 'node')}{such}; there {verb} {len(fitting)} in the partition "
            f"{partition.name}, of {len(site.nodes_of(partition))}",
            "ask for fewer nodes (spare ones count), or for less of each",
        )
        return
    up = [node for node in fitting if not node.is_out]
    if len(up) < wanted:
        out = [node for node in fitting if node.is_out]
        reasons = "; ".join(dict.fromkeys(node.reason for node in out if node.reason))
        said = f" ({reasons})" if reasons else ""
        yield Finding(
            WARNING,
            "resources.nodes",
            f"found {plural(wanted, 'node')}; {len(up)} of the {len(fitting)} that fit are up in "
            f"the partition {partition.name}, as {listed([node.name for node in out], 6)} "
            f"{agreeing(len(out), 'is', 'are')} down or drained{said}",
            "the job waits until they are back; ask for fewer nodes to start earlier",
        )


def cpus_of_gpus(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield how many CPUs the nodes have for the GPUs of a job that does not say."""
    names = {name for one in partition_checks.candidates(request, site) for name in one.nodes}
    nodes = [node for node in site.nodes.values() if node.name in names]
    shares = [
        node.cpus * request.gpus_per_node // node.gpus_of(None) // request.ranks_per_node
        for node in nodes
        if node.gpus_of(request.gpu_type) >= max(1, request.gpus_per_node)
    ]
    if shares and (least := min(shares)) > 1:
        found = f"left out, and so 1; its share of the nodes' CPUs, by GPUs, is {least}"
        yield Finding(NOTE, "resources.cpus_per_task", found, f"type cpus_per_task={least}")


def whole_nodes(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield what keeps a job from the GPUs of its nodes, for which Slurm is not asked."""
    key = "resources.gpu_request"
    for one in partition_checks.candidates(request, site):
        known = [node.name for node in site.nodes_of(one) if node.gpus]
        if known:
            found = f"is none, and Slurm knows GPUs of {listed(known, 5)} in the partition "
            found += f"{one.name}: it may hide them from a job that does not ask for them"
            yield Finding(WARNING, key, found, "type resources.gpu_request=gpus-per-node")
        # With more than one, Slurm passes over --exclusive.
        if one.oversubscribe.startswith("FORCE") and one.oversubscribe != "FORCE:1":
            found = f"is none, and jobs share nodes of the partition {one.name} whatever they ask "
            found += f"for (OverSubscribe={one.oversubscribe}): two of them would use the same GPUs"
            yield Finding(ERROR, key, found, "choose another partition: resources.partition")


def _features(site: SlurmSite) -> set[str]:
    return {feature for node in site.nodes.values() for feature in node.features}


def _needs(request: JobRequest, partition: SlurmPartition, known: set[str]) -> Iterator[_Need]:
    cpus, memory = request.cpus_per_node, request.memory_per_node
    most_cpus, most_memory = partition.max_cpus_per_node, partition.max_memory_per_node
    ranks = request.ranks_per_node

    def has_cpus(node: SlurmNode) -> bool:
        return min(node.cpus, most_cpus or node.cpus) >= cpus

    yield _Need(
        "resources.cpus_per_task" if cpus > ranks else "resources.ntasks_per_node",
        f"{plural(cpus, 'CPU')} ({plural(ranks, 'rank')} x {cpus // ranks})",
        has_cpus,
        lambda nodes: f"the largest has {max(min(n.cpus, most_cpus or n.cpus) for n in nodes)}",
        "ask for fewer CPUs a rank, or for fewer ranks a node",
    )
    if memory is not None:

        def has_memory(node: SlurmNode) -> bool:
            return min(node.memory, most_memory or node.memory) >= memory

        yield _Need(
            "resources.mem",
            f"{_memory(memory)} of memory",
            has_memory,
            lambda nodes: (
                "the largest has "
                + _memory(max(min(node.memory, most_memory or node.memory) for node in nodes))
            ),
            "ask for less, or for 0, which is all that a node has",
        )
    if request.gpus_per_node:
        yield from _gpus(request)
    # A feature that no node has was told already.
    if request["constraint"] and request.features <= known:
        yield _Need(
            "resources.constraint",
            f"the features {request['constraint']}",
            lambda node: request.accepts(node.features),
            lambda nodes: (
                "the nodes have "
                + (listed(sorted({one for node in nodes for one in node.features}), 10) or "none")
            ),
            "name features that one node has together",
        )


def _gpus(request: JobRequest) -> Iterator[_Need]:
    wanted, kind = request.gpus_per_node, request.gpu_type

    def there(nodes: Sequence[SlurmNode]) -> str:
        kinds: dict[str, int] = {}
        for node in nodes:
            for name, amount in node.gpus.items():
                kinds[name] = max(kinds.get(name, 0), amount)
        if not kinds:
            return "no node has a GPU that Slurm knows"
        most = (f"{amount} {name}".strip() for name, amount in sorted(kinds.items()))
        return f"the most of a node are {listed(list(most), 8)}"

    yield _Need(
        "resources.gpu_type" if kind else "resources.gpus_per_node",
        f"{plural(wanted, 'GPU')}{f' of type {kind}' if kind else ''}",
        lambda node: node.gpus_of(kind) >= wanted,
        there,
        "ask for what the nodes have; `sinfo -o '%P %G'` lists the GPUs of each partition; "
        "where Slurm does not know them, resources.gpu_request=none resources.node_has_gpus=N",
    )


def _memory(megabytes: float) -> str:
    return f"{megabytes / 1024:.4g}G" if megabytes >= 1024 else f"{megabytes:.4g}M"
