"""Made-up clusters, through the reader of Slurm's answers: GPUs, QOS and limits of no real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcrun.site import slurm_site
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.slurm import site_queries

_CONFIG = {
    "ClusterName": "alps",
    "SLURM_VERSION": "24.11.5",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "MaxArraySize": "1001",
}
_QOS = dict.fromkeys(
    ("MaxWall", "MaxTRES", "MaxJobsPerUser", "MaxSubmitJobsPerUser", "MinTRES", "GrpTRES"), ""
)
_OWN = dict.fromkeys(("MaxJobs", "MaxSubmitJobs", "MaxWall", "MaxTRES", "Partition"), "")


def partition(name: str, nodes: str, **fields: object) -> str:
    """A line of ``scontrol show partition``."""
    given = {"AllowGroups": "ALL", "Default": "NO", "MaxTime": "1-00:00:00", "State": "UP"}
    given |= {key: str(one) for key, one in fields.items()}
    return f"PartitionName={name} Nodes={nodes} " + _line(given)


def nodes(names: Sequence[str], **fields: object) -> list[str]:
    """Lines of ``scontrol show node``."""
    given = {"CPUTot": "64", "RealMemory": "512000", "Gres": "(null)", "State": "IDLE"}
    given |= {key: str(one) for key, one in fields.items()}
    return [f"NodeName={name} {_line(given)}" for name in names]


def _line(fields: Mapping[str, str]) -> str:
    return " ".join(f"{key}={one}" for key, one in fields.items())


def site(
    partitions: Sequence[str],
    machines: Sequence[str],
    *,
    accounts: Mapping[str, str] | None = None,
    default_account: str = "",
    default_qos: str = "",
    qos: Mapping[str, Mapping[str, str]] | None = None,
    without_accounting: str = "",
    groups: Sequence[str] = (),
    is_clear: bool = True,
    **config: str,
) -> SlurmSite:
    """The cluster as ``ann`` sees it; ``accounts`` has the QOS of each of hers.

    Unless ``is_clear`` nobody tells which accounts hers are below.
    """
    settings = [f"{key} = {one}" for key, one in {**_CONFIG, **config}.items()]
    told = {"config": settings, "partition": [*partitions], "node": [*machines]}
    rows = {
        site_queries.USER: [{"DefaultAccount": default_account}],
        site_queries.ASSOCIATIONS: [
            {**_OWN, "Account": name, "QOS": own, "DefaultQOS": default_qos}
            for name, own in (accounts or {}).items()
        ],
        site_queries.QOS: [
            {**_QOS, "Name": name, **(qos or {}).get(name, {})} for name in {"normal", *(qos or {})}
        ],
    }
    rows[site_queries.PARENTS] = [
        {"Account": name, "ParentName": "root"} for name in (accounts or {}) if is_clear
    ]
    known = None if without_accounting else rows
    return slurm_site.make(told, known, without_accounting, "ann", frozenset(groups))
