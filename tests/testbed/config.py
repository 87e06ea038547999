"""Slurm's configuration files, rendered from settings: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import network, storage
from .layout import LOGIN, Layout

CLUSTER_NAME = "testbed"
DATABASE_PORT = 6819
CONTROLLER_PORT = 6817


@dataclass(frozen=True)
class Settings:
    """What a test may choose about its cluster.

    Parameters
    ----------
    cred_expire
        Seconds a job credential lives; a requeued job waits this long and one second more
        (Slurm's default is 120).
    extra
        Lines of slurm.conf, which replace the bed's own of the same key.
    files
        Name -> text of further files beside slurm.conf, such as a site's job_submit.lua.
    partitions
        Name -> fields of further partitions, or of the bed's own.
    features
        Node -> its features.
    gpus
        GPUs of each node; with 0 Slurm has no GRES at all.
    visible
        Further directories of this machine that the bed's machines can read, at the same paths.
    storage
        How the clients of the shared file system cache (`tests.testbed.storage`).
    ahead
        Node -> seconds by which the clock of what runs there is ahead (`tests/testbed/clock.c`).
    ipv6
        Whether the machines have no other addresses.
    light
        Whether Python leaves out what ranks import and do not use (`tests/testbed/light`).
    """

    version: str = "22.05"
    nodes: int = 4
    cpus: int = 8
    memory_mb: int = 16000
    gpus: int = 2
    cred_expire: int = 5
    max_array_size: int = 1001
    grace_time: int = 10
    slurmd_timeout: int = 20
    kill_wait: int = 10
    extra: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    visible: tuple[str, ...] = ()
    storage: str = storage.TENTH
    ahead: Mapping[str, int] = field(default_factory=dict)
    ipv6: bool = False
    light: bool = False


def slurm_conf(settings: Settings, layout: Layout) -> str:
    """Return slurm.conf."""
    options = {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": f"{LOGIN}({network.address(LOGIN, ipv6=settings.ipv6)})",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"cred_expire={settings.cred_expire}",
        "StateSaveLocation": str(layout.spool(LOGIN)),
        "SlurmdSpoolDir": str(layout.spool("%n")),
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": str(layout.logs / "slurmctld.log"),
        "SlurmdLogFile": str(layout.logs / "slurmd-%n.log"),
        "SlurmctldDebug": "verbose",
        "SlurmdDebug": "verbose",
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/cgroup",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=5",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "1500",
        # Nodes of eight CPUs on a machine of two.
        "SlurmdParameters": "config_overrides",
        "GresTypes": "gpu",
        "MpiDefault": "none",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "SchedulerParameters": "sched_interval=2,batch_sched_delay=1,bf_interval=1",
        "SlurmdTimeout": str(settings.slurmd_timeout),
        "KillWait": str(settings.kill_wait),
        "MaxArraySize": str(settings.max_array_size),
        # A node that lost its power comes back by itself.
        "ReturnToService": "2",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": LOGIN,
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
    }
    if not settings.gpus:
        for key in ("GresTypes", "AccountingStorageTRES"):
            del options[key]
    options |= {**_only_ipv6(settings), **settings.extra}
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    lines = [f"{key}={value}" for key, value in options.items()]
    for name in network.node_names(settings.nodes):
        features = f" Features={settings.features[name]}" if name in settings.features else ""
        address = network.address(name, ipv6=settings.ipv6)
        lines.append(
            f"NodeName={name} NodeAddr={address} CPUs={settings.cpus}"
            f" RealMemory={settings.memory_mb}{gres}{features} State=UNKNOWN"
        )
    everywhere = "Nodes=ALL MaxTime=1-00:00:00 DefaultTime=01:00:00"
    grace = f"GraceTime={settings.grace_time}"
    lines += [
        f"PartitionName=main {everywhere} Default=YES PriorityTier=1 {grace}",
        f"PartitionName=cancel {everywhere} PriorityTier=1 PreemptMode=CANCEL {grace}",
        f"PartitionName=abrupt {everywhere} PriorityTier=1 GraceTime=0",
        f"PartitionName=abrupt-cancel {everywhere} PriorityTier=1 PreemptMode=CANCEL GraceTime=0",
        f"PartitionName=high {everywhere} PriorityTier=10",
        *(
            f"PartitionName={name} {fields if 'MaxTime' in fields else f'{everywhere} {fields}'}"
            for name, fields in settings.partitions.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(settings: Settings, layout: Layout) -> str:
    """Return slurmdbd.conf; the database has the bed's name, so that no two share one."""
    options = {
        "AuthType": "auth/munge",
        "DbdHost": LOGIN,
        "DbdPort": str(DATABASE_PORT),
        "SlurmUser": "root",
        "PidFile": "/run/slurmdbd.pid",
        "LogFile": str(layout.logs / "slurmdbd.log"),
        "DebugLevel": "verbose",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": layout.name.replace("-", "_").lower(),
    }
    options |= _only_ipv6(settings)
    return "".join(f"{key}={value}\n" for key, value in options.items())


def _only_ipv6(settings: Settings) -> dict[str, str]:
    return {"CommunicationParameters": "EnableIPv6,DisableIPv4"} if settings.ipv6 else {}


def cgroup_conf() -> str:
    """Return cgroup.conf: memory limits are enforced by the kernel."""
    return "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"


def gres_conf(settings: Settings, layout: Layout) -> str:
    """Return gres.conf, whose GPUs are device nodes with nothing behind them."""
    if not settings.gpus:
        return "AutoDetect=off\n"
    last = settings.gpus - 1
    files = layout.devices / ("gpu0" if last == 0 else f"gpu[0-{last}]")
    return f"AutoDetect=off\nName=gpu File={files}\n"
