"""Whether a job's partitions exist, take jobs, and are open to this user. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpcrun.check.finding import ERROR, WARNING, Finding
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.source.problems import did_you_mean
from hpcrun.site.slurm_site import SlurmPartition, SlurmSite
from hpcrun.text import duration, listed

_KEY = "resources.partition"
_CHOOSE = "choose another partition, or ask the administrators for this one"


def check_names(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for each partition that does not exist, and for a default that is none."""
    usable = [one.name for one in site.partitions.values() if not one.is_hidden]
    for name in request.partitions:
        if name not in site.partitions:
            yield Finding(
                ERROR,
                _KEY,
                f"there is no partition {name!r}; this cluster has {listed(usable, 15)}",
                did_you_mean(name, usable),
            )
    if not request.partitions and site.default_partition() is None:
        yield Finding(
            ERROR,
            _KEY,
            f"no partition is named, and this cluster has no default; it has {listed(usable, 15)}",
            "name one in resources.partition, or in the cluster profile",
        )


def candidates(request: JobRequest, site: SlurmSite) -> list[SlurmPartition]:
    """Return the partitions that the job asks for and that exist."""
    default = site.default_partition()
    if not request.partitions:
        return [default] if default else []
    return [site.partitions[name] for name in request.partitions if name in site.partitions]


def usable(request: JobRequest, partition: SlurmPartition, site: SlurmSite) -> Iterator[Finding]:
    """Yield why this user's job cannot, or may not, start in a partition."""
    name = partition.name
    account = request["account"] or site.default_account
    if partition.state == "DOWN":
        found = f"the partition {name} is DOWN: jobs wait until the administrators bring it up"
        yield Finding(WARNING, _KEY, found, "choose another partition, or wait")
    elif partition.state != "UP":
        found = f"the partition {name} takes no jobs: its state is {partition.state}"
        yield Finding(ERROR, _KEY, found, _CHOOSE)
    if partition.is_root_only:
        yield Finding(ERROR, _KEY, f"only root may use the partition {name}", _CHOOSE)
    if partition.allow_groups and not site.groups & set(partition.allow_groups):
        yield Finding(
            ERROR,
            _KEY,
            f"the partition {name} is for the groups {listed(partition.allow_groups, 8)}; you, "
            f"{site.user}, are in {listed(sorted(site.groups), 8)}",
            _CHOOSE,
        )
    yield from _by_account(partition, account, "account" in request.options, site)
    yield from _by_qos(request, partition, account, site)
    if partition.alloc_nodes and site.host not in partition.alloc_nodes:
        hosts = listed(partition.alloc_nodes, 4)
        found = f"jobs of the partition {name} are submitted from {hosts}; this is {site.host}"
        yield Finding(WARNING, _KEY, found, "log in there, or choose another partition")
    if partition.needs_reservation and not request["reservation"]:
        yield Finding(
            ERROR,
            "resources.reservation",
            f"the partition {name} is used with a reservation, and none is named",
            "name one in resources.reservation; `scontrol show reservation` lists them",
        )
    yield from _sizes(request, partition, site)


def _by_account(
    partition: SlurmPartition, account: str, is_named: bool, site: SlurmSite
) -> Iterator[Finding]:
    if not account:
        return
    mine = f"account is {account}" if is_named else f"default account is {account}"
    key = "resources.account" if is_named else _KEY
    # Newer Slurms let the accounts below them in, too.
    if partition.allow_accounts and not {*site.above(account)} & {*partition.allow_accounts}:
        accepted = listed(partition.allow_accounts, 8)
        found = f"the partition {partition.name} is for the accounts {accepted}; the {mine}"
        hint = "name one of them in resources.account, if it is yours"
        yield Finding(ERROR if account in site.parents else WARNING, key, found, hint)
    elif account in partition.deny_accounts:
        found = f"the partition {partition.name} is closed to the account {account}"
        yield Finding(ERROR, key, found, _CHOOSE)


def _by_qos(
    request: JobRequest, partition: SlurmPartition, account: str, site: SlurmSite
) -> Iterator[Finding]:
    qos = request["qos"] or site.qos_without(account, partition.name)
    if not qos:
        if partition.allow_qos and site.associations is not None:
            accepted = listed(partition.allow_qos, 8)
            found = f"the partition {partition.name} is for the QOS {accepted}; the job names none"
            yield Finding(WARNING, _KEY, found, "name one of them in resources.qos, if it is yours")
        return
    key = "resources.qos" if request["qos"] else _KEY
    if partition.allow_qos and qos not in partition.allow_qos:
        accepted = listed(partition.allow_qos, 8)
        found = f"the partition {partition.name} is for the QOS {accepted}; the job's is {qos}"
        yield Finding(ERROR, key, found, "name one of them in resources.qos, if it is yours")
    elif qos in partition.deny_qos:
        found = f"the partition {partition.name} is closed to the QOS {qos}"
        yield Finding(ERROR, key, found, _CHOOSE)


def _sizes(request: JobRequest, partition: SlurmPartition, site: SlurmSite) -> Iterator[Finding]:
    account = request["account"] or site.default_account
    qos = request["qos"] or site.qos_without(account, partition.name)
    known = (site.qos or {}).get(qos)
    exempt = known.flags if known else frozenset()
    # A QOS that cannot be asked may be exempt, too.
    refused = ERROR if known or not qos else WARNING
    wanted, limit = request.seconds, partition.max_time
    is_longer = wanted is not None and limit is not None and wanted > limit
    if wanted is not None and is_longer and "PartitionTimeLimit" not in exempt:
        yield Finding(
            refused,
            "resources.time",
            f"found {request['time']} ({duration(wanted)}); the partition {partition.name} accepts "
            f"at most {duration(limit or 0)}",
            "ask for less: hpcrun requeues a run at its time limit, and it goes on from its "
            "checkpoint",
        )
    nodes, most = request.nodes, partition.max_nodes
    if most is not None and nodes > most and "PartitionMaxNodes" not in exempt:
        found = f"found {nodes} nodes; the partition {partition.name} accepts at most {most}"
        hint = "ask for fewer, or choose another partition"
        yield Finding(refused, "resources.nodes", found, hint)
    if nodes < partition.min_nodes and "PartitionMinNodes" not in exempt:
        least = partition.min_nodes
        found = f"found {nodes} nodes; the partition {partition.name} accepts at least {least}"
        hint = "ask for more, or choose another partition"
        yield Finding(refused, "resources.nodes", found, hint)
