"""The job around this process, from the variables that Slurm sets."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcrun.errors import ClusterRefused, HpcrunError
from hpcrun.slurm import client
from hpcrun.slurm.hostlist import expand
from hpcrun.state.spec.blocks import RunSpec
from hpcrun.state.spec.executors import Executor

# Variables that place a run's steps in an allocation; `SLURM_CPU_BIND` and its like slow them.
_VARIABLES_TEXT = """
SLURM_CONF SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NODELIST SLURM_NODELIST SLURM_JOB_NUM_NODES
SLURM_NNODES SLURM_JOB_CPUS_PER_NODE SLURM_CLUSTER_NAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
SLURM_RESTART_COUNT SLURM_JOB_END_TIME
"""
VARIABLES = frozenset(_VARIABLES_TEXT.split())


@dataclass(frozen=True)
class Allocation:
    """The job around this process."""

    job_id: str
    """The raw id, also of an array's element."""
    name: str
    """``123`` or ``123_4``, by which Slurm requeues it."""
    nodes: tuple[str, ...]
    """Names of its nodes, in Slurm's order."""
    restart_count: int
    """Number of requeues so far."""
    cpus_per_node: int | None = None
    """CPUs of its smallest node; None where Slurm does not say."""
    gpus_per_node: int | None = None
    """GPUs of each node; None where Slurm does not say."""
    part_ids: tuple[str, ...] = ()
    """The raw ids of the parts of a heterogeneous job; empty of any other."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Node -> the number of its part; empty where there are none."""

    @classmethod
    def current(cls) -> Allocation:
        """Read the allocation from the environment.

        Raises HpcrunError if this process is not inside a Slurm job, the node list is malformed, or
        two parts of a heterogeneous job have a node in common.
        """
        job_id = os.environ.get("SLURM_JOB_ID")
        nodelist = os.environ.get("SLURM_JOB_NODELIST")
        if not job_id or not nodelist:
            raise HpcrunError(
                "SLURM_JOB_ID and SLURM_JOB_NODELIST are not both set: this is not inside a Slurm "
                "job",
                hint="submit with `hpcrun submit`, run inside `salloc` with `hpcrun run`, or on "
                "this machine with `cluster=local`",
            )
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        # ``8(x2),4``: CPUs of two nodes and of one.
        cpus = re.findall(r"(?:^|,)(\d+)", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        gpus = re.search(r"(\d+)$", os.environ.get("SLURM_GPUS_PER_NODE", ""))
        part_ids, parts = _parts()
        return cls(
            job_id=job_id,
            name=f"{array}_{task}" if array and task else job_id,
            nodes=tuple(parts) or expand(nodelist),
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            cpus_per_node=min(map(int, cpus), default=None),
            gpus_per_node=int(gpus[1]) if gpus else None,
            part_ids=part_ids,
            parts=parts,
        )

    def check(self, runs: Iterable[RunSpec]) -> None:
        """Check that every run fits.

        Raises ClusterRefused if a run needs more than the allocation has.
        """
        for run in runs:
            keys = "resources.nodes" + (" + spare_nodes" if run.spare_nodes else "")
            self._compare("nodes", run.all_nodes, len(self.nodes), keys)
            cpus = run.ranks_per_node * (run.resources.cpus_per_task or 1)
            keys = "ranks per node x resources.cpus_per_task"
            self._compare("CPUs per node", cpus, self.cpus_per_node, keys)
            gpus = run.resources.gpus_per_node
            self._compare("GPUs per node", gpus, self.gpus_per_node, "resources.gpus_per_node")
            if run.resources.has_whole_nodes and self._is_shared:
                raise ClusterRefused(
                    f"Slurm is not asked for GPUs (resources.gpu_request: none), and the "
                    f"allocation {self.name} may share its nodes: two jobs would use the same GPUs",
                    hint="begin one with `salloc --exclusive`, or use `hpcrun submit`",
                )

    @cached_property
    def _is_shared(self) -> bool:
        """Other jobs may be on its nodes, for all that Slurm says."""
        asked = ["squeue", "--noheader", f"--jobs={self.job_id}", "--format=%h"]
        try:
            return client.command(asked).strip() != "NO"
        except client.CommandFailed:
            return True

    def _compare(self, what: str, wanted: int, there: int | None, keys: str) -> None:
        if there is not None and wanted > there:
            raise ClusterRefused(
                f"the spec asks for {wanted} {what} ({keys}); the allocation {self.name} has "
                f"{there}",
                hint="begin a larger allocation with salloc, ask for less, or use `hpcrun submit`",
            )


def _parts() -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the ids of a heterogeneous job's parts, and the part of each node, in their order."""
    ids: list[str] = []
    parts: dict[str, int] = {}
    for number in range(int(os.environ.get("SLURM_HET_SIZE") or 0)):
        ids.append(os.environ[f"SLURM_JOB_ID_HET_GROUP_{number}"])
        for node in expand(os.environ[f"SLURM_JOB_NODELIST_HET_GROUP_{number}"]):
            if parts.setdefault(node, number) != number:
                raise HpcrunError(
                    f"Slurm gave node {node} to two parts of this job, which need nodes of their "
                    "own",
                    hint="ask for whole nodes (resources.sbatch: {exclusive: true}), or for "
                    "partitions that have no node in common",
                )
    return tuple(ids), parts


def is_around() -> bool:
    """Check whether this shell is one of an allocation, as its variables have it."""
    return bool(os.environ.get("SLURM_JOB_ID")) and shutil.which("srun") is not None


def around(cluster: Mapping[str, Any]) -> Allocation | None:
    """Return the allocation around this process; None outside one, or for the local executor."""
    return Allocation.current() if Executor.of(cluster).queues and is_around() else None
