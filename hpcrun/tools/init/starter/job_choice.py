"""The partition, account, QOS and size of a first job, by the judges of `hpcrun check`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hpcrun.check.check import judge_job
from hpcrun.check.finding import ERROR, Finding
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.target.slurm_options import FORMS
from hpcrun.site.slurm_site import SlurmNode, SlurmPartition, SlurmSite
from hpcrun.text import listed, plural

# A first job: nodes, minutes, CPUs of a rank, and MB a rank on a CPU and beside a GPU.
NODES, MINUTES = 2, 15
_CPUS, _CPUS_OF_GPU = 1, 8
_MEMORY, _MEMORY_OF_GPU = 4_000, 16_000
# Pairs of account and QOS that are tried in a partition.
_MOST_PAIRS = 24


@dataclass(frozen=True)
class PartitionUse:
    """A partition as this user may use it."""

    partition: SlurmPartition
    account: str = ""
    """Empty where the cluster has no accounts, or none of this user's."""
    qos: str = ""
    """Empty for what the account has by itself."""
    problem: str = ""
    """Why it is not open to this user; empty if it is."""

    @property
    def name(self) -> str:
        return self.partition.name


@dataclass(frozen=True)
class JobChoice:
    """A first job, which the cluster as it was read will start."""

    use: PartitionUse
    why: str
    """Why this partition, in words."""
    nodes: int
    gpus_per_node: int
    cpus_per_task: int
    mem: str | None
    """Memory of a node, as sbatch has it; None where Slurm does not divide memory."""
    minutes: int
    doubts: tuple[str, ...] = ()
    """Warnings of the judges."""


def uses(site: SlurmSite, given: Mapping[str, Any]) -> list[PartitionUse]:
    """Return the partitions with what this user needs there, those to prefer first.

    ``given`` has the partition, account and QOS that a profile decides already.
    """
    named = str(given.get("partition") or "").split(",")
    found = [_use(one, site, given) for one in site.partitions.values()]

    def rank(one: PartitionUse) -> tuple[bool, bool, bool, bool, int]:
        up = sum(not node.is_out for node in site.nodes_of(one.partition))
        is_last = one.partition.is_hidden, not one.partition.is_default
        return bool(one.problem), one.name not in named, *is_last, -up

    return sorted(found, key=rank)


def _use(partition: SlurmPartition, site: SlurmSite, given: Mapping[str, Any]) -> PartitionUse:
    if not FORMS["partition"][0].fullmatch(partition.name):
        odd = f"partition {partition.name!r} has characters that no spec may have"
        return PartitionUse(partition, problem=odd)
    first = doubtful = None
    for account, qos in islice(_pairs(partition, site, given), _MOST_PAIRS):
        request = _request(partition, account, qos, max(1, partition.min_nodes), minutes=1)
        judged = list(judge_job(request, site))
        wrong = [one for one in judged if one.severity == ERROR]
        if not judged:
            return PartitionUse(partition, account, qos)
        if not wrong:
            doubtful = doubtful or PartitionUse(partition, account, qos)
        else:
            first = first or wrong[0].message
    return doubtful or PartitionUse(partition, problem=first or "no account and QOS of yours fit")


def _pairs(
    partition: SlurmPartition, site: SlurmSite, given: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield accounts and QOS of this user, those that Slurm takes by itself first."""
    mine = dict.fromkeys([site.default_account, *(one.account for one in site.associations or ())])
    accounts = [one for one in mine if one and FORMS["account"][0].fullmatch(one)] or [""]
    if given.get("account"):
        accounts = [str(given["account"])]
    for account in accounts:
        own = [name for one in site.associations_of(account, partition.name) for name in one.qos]
        names = dict.fromkeys([site.qos_without(account, partition.name), *own])
        several = [one for one in names if one and FORMS["qos"][0].fullmatch(one)] or [""]
        if given.get("qos"):
            several = [str(given["qos"])]
        for qos in several:
            yield account, qos


def _request(
    partition: SlurmPartition,
    account: str,
    qos: str,
    nodes: int,
    *,
    minutes: int,
    gpus: int = 0,
    cpus: int = 1,
    mem: str | None = None,
) -> JobRequest:
    options = {
        "partition": partition.name,
        "account": account,
        "qos": qos,
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cpus),
        "gpus-per-node": str(gpus) if gpus else "",
        "mem": mem or "",
        "time": str(minutes),
    }
    return JobRequest((0,), "", {name: value for name, value in options.items() if value})


def choose(
    site: SlurmSite, found: Sequence[PartitionUse], given: Mapping[str, Any], *, on_gpus: bool
) -> JobChoice | None:
    """Return a first job; None where no partition would start one.

    With ``on_gpus`` it has one GPU a node, if there are any. Two nodes come before one, and what
    the judges say nothing of before what they warn of.
    """
    named = [one for one in str(given.get("partition") or "").split(",") if one]
    usable = [one for one in found if not one.problem and (not named or one.name in named)]
    fallback = None
    for gpus in (1, 0) if on_gpus else (0,):
        for nodes in (NODES, 1):
            for use in usable:
                choice = _choose_size(site, use, nodes, gpus, named)
                if choice is None:
                    continue
                if not choice.doubts:
                    return choice
                fallback = fallback or choice
        if fallback is not None:
            return fallback
    return None


def _choose_size(
    site: SlurmSite, use: PartitionUse, nodes: int, gpus: int, named: Sequence[str]
) -> JobChoice | None:
    """Return a job of so many nodes and GPUs; None where the partition does not take it."""
    partition = use.partition
    nodes = max(nodes, partition.min_nodes)
    fitting = [one for one in site.nodes_of(partition) if one.gpus_of(None) >= gpus]
    up = [one for one in fitting if not one.is_out] or fitting
    if len(fitting) < nodes or not up:
        return None
    cpus = _cpus(site, up, partition, gpus)
    mem, each = _memory(site, up, partition, gpus), site.number("MaxMemPerCPU")
    if mem is not None and each:
        # What is more a CPU Slurm refuses, or charges as more CPUs.
        mem = min(mem, each * cpus)
    minutes = min(MINUTES, (partition.max_time or MINUTES * 60) // 60) or 1
    who = partition, use.account, use.qos
    told = None if mem is None else f"{mem}M"
    request = _request(*who, nodes, minutes=minutes, gpus=gpus, cpus=cpus, mem=told)
    judged: list[Finding] = list(judge_job(request, site))
    if any(one.severity == ERROR for one in judged):
        return None
    doubts = tuple(one.message for one in judged)
    why = _why(site, partition, gpus, named)
    return JobChoice(use, why, nodes, gpus, cpus, told, minutes, doubts)


def _cpus(site: SlurmSite, nodes: Sequence[SlurmNode], partition: SlurmPartition, gpus: int) -> int:
    """Return CPUs of a rank that every one of these nodes has."""
    shares = [one.cpus // max(1, one.gpus_of(None) if gpus else 1) for one in nodes]
    most = _CPUS_OF_GPU if gpus else _CPUS
    each = site.number("MaxMemPerCPU")
    if each:
        most = max(most, -(-(_MEMORY_OF_GPU if gpus else _MEMORY) // each))
    return max(1, min([most, *shares, *filter(None, [partition.max_cpus_per_node])]))


def _memory(
    site: SlurmSite, nodes: Sequence[SlurmNode], partition: SlurmPartition, gpus: int
) -> int | None:
    """Return MB of a node that every one of these has; None where Slurm does not divide memory."""
    if "MEMORY" not in site.settings.get("SelectTypeParameters", "").upper():
        return None
    wanted = _MEMORY_OF_GPU if gpus else _MEMORY
    there = min(one.memory / max(1, one.gpus_of(None) if gpus else 1) for one in nodes)
    return int(min([wanted, there, *filter(None, [partition.max_memory_per_node])]))


def _why(site: SlurmSite, partition: SlurmPartition, gpus: int, named: Sequence[str]) -> str:
    if named:
        return "as the profile says"
    if partition.is_default:
        return "the default partition"
    default = site.default_partition()
    if default is None:
        return "this cluster has no default partition, and this one is open to you"
    has_gpus = any(one.gpus_of(None) for one in site.nodes_of(default))
    lacks = "has no GPUs" if gpus and not has_gpus else "does not take a first job of yours"
    return f"the default partition, {default.name}, {lacks}"


def nodes_in_words(site: SlurmSite, partition: SlurmPartition) -> str:
    """Return ``4 nodes of 8 CPUs, 15.6 GiB, 2 GPUs (a100); 1 is out``."""
    nodes = site.nodes_of(partition)
    kinds = dict.fromkeys(map(_node_in_words, nodes))
    out = sum(one.is_out for one in nodes)
    of = listed([*kinds], 3, " or of ")
    told = f"{plural(len(nodes), 'node')} of {of}" if nodes else "no nodes"
    return f"{told}; {out} out" if out else told


def _node_in_words(node: SlurmNode) -> str:
    gpus = [f"{number} GPUs{f' {kind}' if kind else ''}" for kind, number in node.gpus.items()]
    memory = f"{node.memory / 1024:.0f} GiB" if node.memory > 1 else "memory not known"
    return " + ".join([plural(node.cpus, "CPU"), memory, *gpus])
