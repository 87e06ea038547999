"""The site as Slurm describes it to this user: partitions, nodes, reservations, limits."""

from __future__ import annotations

import contextvars
import grp
import os
import pwd
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hpcrun import activity
from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.site import site_names
from hpcrun.site import slurm_records as records
from hpcrun.slurm import client, site_queries
from hpcrun.slurm.parse import array_size, parse_duration, parse_time

# States, or flags on them, in which a node starts no job until somebody acts.
_OUT = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "UNKNOWN"}
_OUT |= {"NOT_RESPONDING", "MAINT", "POWER_DOWN", "INVAL", "INVALID_REG", "REBOOT"}
_DENIED = "Access/permission denied"
_PRIVATE = (
    "this Slurm shows its nodes or partitions to administrators alone (PrivateData in slurm.conf), "
    "so that nothing can be checked before; `hpcrun submit` submits all the same"
)


@dataclass(frozen=True)
class SlurmPartition:
    """A partition, and who may use it."""

    name: str
    state: str
    """``UP``, ``DOWN``, ``DRAIN`` or ``INACTIVE``."""
    is_default: bool
    max_time: int | None
    """Seconds; None for no limit."""
    min_nodes: int
    max_nodes: int | None
    nodes: tuple[str, ...]
    allow_groups: tuple[str, ...]
    """Empty for all, as the lists below; the ``deny`` ones are empty for nobody."""
    allow_accounts: tuple[str, ...]
    deny_accounts: tuple[str, ...]
    allow_qos: tuple[str, ...]
    deny_qos: tuple[str, ...]
    alloc_nodes: tuple[str, ...]
    """Hosts from which jobs may be submitted."""
    is_root_only: bool
    needs_reservation: bool
    is_hidden: bool
    max_cpus_per_node: int | None
    max_memory_per_node: float | None
    """MB."""
    preempt_mode: str
    grace_seconds: int
    qos: str
    """The QOS whose limits all its jobs have; empty for none."""
    oversubscribe: str = ""
    """``NO``, ``EXCLUSIVE``, ``YES:4`` or ``FORCE:4``."""


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurm.conf and its own daemon have it."""

    name: str
    cpus: int
    memory: float
    """MB that jobs may use."""
    gpus: Mapping[str, int]
    """Type -> GPUs; the type is empty where Slurm knows none."""
    features: frozenset[str]
    state: frozenset[str]
    """``IDLE``, or ``DOWN`` with flags such as ``DRAIN``."""
    version: str
    reason: str

    @property
    def is_out(self) -> bool:
        """Check whether it starts no job until somebody acts."""
        return bool(self.state & _OUT)

    def gpus_of(self, kind: str | None) -> int:
        """Return its GPUs of a type, in either case, or all of them."""
        wanted = None if kind is None else kind.lower()
        return sum(n for name, n in self.gpus.items() if wanted in (None, name.lower()))


@dataclass(frozen=True)
class SlurmReservation:
    """Nodes that are kept for some users for a time."""

    name: str
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    groups: tuple[str, ...]
    nodes: tuple[str, ...]
    start: float | None
    """Seconds since the epoch, as ``end``."""
    end: float | None
    flags: tuple[str, ...]


@dataclass(frozen=True)
class SlurmLimits:
    """Limits of one association or QOS; None and absent for no limit."""

    max_wall: int | None = None
    """Seconds of a job."""
    max_submit: int | None = None
    """Jobs of a user that wait or run, each task of an array for itself."""
    max_jobs: int | None = None
    """Jobs of a user that run."""
    most: Mapping[str, float] = field(default_factory=dict)
    """Resource, such as ``gres/gpu`` -> most of one job; memory in MB."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Resource -> least of one job."""
    flags: frozenset[str] = frozenset()
    """Flags of a QOS, such as ``PartitionTimeLimit``: it has no such limit of the partition."""


@dataclass(frozen=True)
class SlurmAssociation:
    """An account that this user may charge."""

    account: str
    partition: str
    """Empty for all partitions."""
    qos: tuple[str, ...]
    default_qos: str
    limits: SlurmLimits


@dataclass(frozen=True)
class SlurmSite:
    """All of it, at one moment."""

    user: str
    groups: frozenset[str]
    host: str
    settings: Mapping[str, str]
    """The settings of ``scontrol show config``."""
    partitions: Mapping[str, SlurmPartition]
    nodes: Mapping[str, SlurmNode]
    reservations: Mapping[str, SlurmReservation]
    licenses: Mapping[str, int]
    """License -> how many there are."""
    default_account: str
    associations: Sequence[SlurmAssociation] | None
    """None where slurmdbd does not answer, or there is none."""
    qos: Mapping[str, SlurmLimits] | None
    without_accounting: str
    """Why associations and QOS are not known; empty where they are."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the one above it, as far as this user may see them."""

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self.settings.get("ClusterName", "")

    @property
    def version(self) -> str:
        """Return Slurm's version, such as ``24.11.5``."""
        return self.settings.get("SLURM_VERSION", "")

    def number(self, setting: str) -> int | None:
        """Return the number that a setting begins with: 5 of ``5 sec``; None for others."""
        return records.count(next(iter(self.settings.get(setting, "").split()), ""))

    @property
    def array_size(self) -> int | None:
        """Return above which index, and number of tasks, arrays are refused; None if unknown."""
        return array_size(self.settings)

    def enforces(self, what: str) -> bool:
        """Check AccountingStorageEnforce for ``associations``, ``limits`` or ``qos``."""
        given = {
            word.strip() for word in self.settings.get("AccountingStorageEnforce", "").split(",")
        }
        implied = {"associations": {"limits", "qos", "safe", "wckeys", "nosteps", "all"}}
        implied |= {"limits": {"safe", "all"}, "qos": {"all"}}
        return bool(given & {what, *implied.get(what, ())})

    def above(self, account: str) -> list[str]:
        """Return an account and those above it, the nearest first."""
        found = [account]
        while (parent := self.parents.get(found[-1])) and parent not in found:
            found.append(parent)
        return found

    def default_partition(self) -> SlurmPartition | None:
        """Return the partition of jobs that name none."""
        return next((one for one in self.partitions.values() if one.is_default), None)

    def nodes_of(self, partition: SlurmPartition) -> list[SlurmNode]:
        """Return a partition's nodes that Slurm knows."""
        return [self.nodes[name] for name in partition.nodes if name in self.nodes]

    def associations_of(self, account: str, partition: str = "") -> list[SlurmAssociation]:
        """Return this user's associations with an account, those of a partition before the rest."""
        found = [one for one in self.associations or () if one.account == account]
        own = [one for one in found if partition and one.partition == partition]
        return own or [one for one in found if not one.partition]

    def qos_without(self, account: str, partition: str = "") -> str:
        """Return the QOS of a job that names none; empty where that is not known."""
        ours = self.associations_of(account, partition)
        named = next((one.default_qos for one in ours if one.default_qos), "")
        every = {name for one in ours for name in one.qos}
        return named or (every.pop() if len(every) == 1 else "")


def read() -> SlurmSite:
    """Ask slurmctld and slurmdbd side by side.

    Raise ClusterUnreachable if slurmctld does not answer; what slurmdbd would tell is left out
    then, and said in ``without_accounting``.
    """
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the directory of users does not answer, or a container has none
        user = str(os.getuid())
    doing = activity.doing("asking Slurm what this cluster is")
    with doing, ThreadPoolExecutor(2) as pool:
        # The patience of a reader is this thread's.
        asked = pool.submit(contextvars.copy_context().run, site_queries.accounting, user)
        try:
            told = site_queries.controller()
        except client.CommandFailed as error:
            failed = client.refusal(f"scontrol: {error}")
            if isinstance(failed, ClusterRefused):
                hint = _PRIVATE if _DENIED in str(error) else "repeat the same command"
                failed = ClusterUnreachable(f"scontrol: {error}", hint=hint)
            raise failed from None
        try:
            rows, missing = asked.result(), ""
        except client.CommandFailed as error:
            rows, missing = None, str(error)
    site = make(told, rows, missing, user, _groups())
    site_names.keep(site)
    return site


def _groups() -> frozenset[str]:
    found = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            found.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(found)


def make(
    told: Mapping[str, list[str]],
    rows: Mapping[str, list[dict[str, str]]] | None,
    missing: str,
    user: str,
    groups: frozenset[str],
) -> SlurmSite:
    """Return the site of the answers of `hpcrun.slurm.site_queries`."""
    settings = records.settings(told.get("config", []))
    if rows is not None and not settings.get("AccountingStorageType", "").endswith("/slurmdbd"):
        rows, missing = None, "this Slurm has no slurmdbd (AccountingStorageType)"
    rows = rows and {
        # One slurmdbd may be that of several clusters.
        what: [row for row in own if row.get("Cluster", "") in ("", settings.get("ClusterName"))]
        for what, own in rows.items()
    }
    nodes = _fields_by_name(told.get("node", ()), "NodeName")
    partitions = _fields_by_name(told.get("partition", ()), "PartitionName")
    reservations = _fields_by_name(told.get("reservation", ()), "ReservationName")
    licenses = _fields_by_name(told.get("licenses", ()), "LicenseName")
    accounts = [row["DefaultAccount"] for row in rows[site_queries.USER]] if rows else []
    parents = rows.get(site_queries.PARENTS, ()) if rows else ()
    return SlurmSite(
        user=user,
        groups=groups,
        host=socket.gethostname().partition(".")[0],
        settings=settings,
        partitions={name: _partition(line) for name, line in partitions.items()},
        nodes={name: _node(line) for name, line in nodes.items()},
        reservations={name: _reservation(line) for name, line in reservations.items()},
        licenses={name: records.count(line.get("Total")) or 0 for name, line in licenses.items()},
        default_account=next(iter(accounts), ""),
        associations=None
        if rows is None
        else [*map(_association, rows[site_queries.ASSOCIATIONS])],
        qos=None
        if rows is None
        else {row["Name"]: _limits(row, "PerUser") for row in rows[site_queries.QOS]},
        without_accounting=missing,
        parents={row["Account"]: row["ParentName"] for row in parents},
    )


def _fields_by_name(lines: Iterable[str], key: str) -> dict[str, dict[str, str]]:
    """Return the fields of each line by the name that it has under ``key``."""
    return {line[key]: line for line in map(records.fields, lines) if key in line}


def _partition(line: Mapping[str, str]) -> SlurmPartition:
    def names(field_name: str) -> tuple[str, ...]:
        value = line.get(field_name, "")
        return () if value == "ALL" else records.words(value)

    return SlurmPartition(
        name=line["PartitionName"],
        state=line.get("State", "UP"),
        is_default=line.get("Default") == "YES",
        max_time=parse_duration(line.get("MaxTime", "")),
        min_nodes=records.count(line.get("MinNodes")) or 0,
        max_nodes=records.count(line.get("MaxNodes")),
        nodes=records.nodes(line.get("Nodes")),
        allow_groups=names("AllowGroups"),
        allow_accounts=names("AllowAccounts"),
        deny_accounts=names("DenyAccounts"),
        allow_qos=names("AllowQos"),
        deny_qos=names("DenyQos"),
        alloc_nodes=()
        if line.get("AllocNodes", "ALL") == "ALL"
        else records.nodes(line["AllocNodes"]),
        is_root_only=line.get("RootOnly") == "YES",
        needs_reservation=line.get("ReqResv") == "YES",
        is_hidden=line.get("Hidden") == "YES",
        max_cpus_per_node=records.count(line.get("MaxCPUsPerNode")),
        oversubscribe=line.get("OverSubscribe", ""),
        max_memory_per_node=records.megabytes(line.get("MaxMemPerNode")),
        preempt_mode=line.get("PreemptMode", ""),
        grace_seconds=records.count(line.get("GraceTime")) or 0,
        qos="" if line.get("QoS") in (None, "N/A") else line["QoS"],
    )


def _node(line: Mapping[str, str]) -> SlurmNode:
    return SlurmNode(
        name=line["NodeName"],
        cpus=records.count(line.get("CPUEfctv")) or records.count(line.get("CPUTot")) or 0,
        memory=records.megabytes(line.get("RealMemory")) or 0.0,
        gpus=records.gpus(line.get("Gres")),
        features=frozenset(records.words(line.get("AvailableFeatures"))),
        state=records.node_state(line.get("State", "")),
        version=line.get("Version", ""),
        # Without who gave it, and when.
        reason=line.get("Reason", "").partition(" [")[0],
    )


def _reservation(line: Mapping[str, str]) -> SlurmReservation:
    return SlurmReservation(
        name=line["ReservationName"],
        users=records.words(line.get("Users")),
        accounts=records.words(line.get("Accounts")),
        groups=records.words(line.get("Groups")),
        nodes=records.nodes(line.get("Nodes")),
        start=parse_time(line.get("StartTime", "")),
        end=parse_time(line.get("EndTime", "")),
        flags=records.words(line.get("Flags")),
    )


def _association(row: Mapping[str, str]) -> SlurmAssociation:
    return SlurmAssociation(
        account=row["Account"],
        partition=row["Partition"],
        qos=records.words(row["QOS"]),
        default_qos=row["DefaultQOS"],
        limits=_limits(row),
    )


def _limits(row: Mapping[str, str], of_user: str = "") -> SlurmLimits:
    """Return the limits of an association; of a QOS, whose columns end in ``PerUser``."""
    most, of_all = (records.resources(row.get(column)) for column in ("MaxTRES", "GrpTRES"))
    return SlurmLimits(
        max_wall=parse_duration(row["MaxWall"]) if row["MaxWall"] else None,
        max_submit=records.count(row[f"MaxSubmitJobs{of_user}"]),
        max_jobs=records.count(row[f"MaxJobs{of_user}"]),
        most=_smaller(most, of_all),
        least=records.resources(row.get("MinTRES")),
        flags=frozenset(records.words(row.get("Flags"))),
    )


def _smaller(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {
        name: min(given[name] for given in (one, other) if name in given) for name in {*one, *other}
    }
