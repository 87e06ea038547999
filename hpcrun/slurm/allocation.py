"""The Slurm allocation that this command was typed in, and whether runs fit into it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from hpcrun.errors import ClusterRefused
from hpcrun.slurm import steps
from hpcrun.state.spec.blocks import RunSpec


@dataclass(frozen=True)
class Inside:
    """An allocation.

    Attributes
    ----------
    name
        The job's id, ``123`` or ``123_4``.
    nodes
        How many nodes it has.
    cpus_per_node
        CPUs of its smallest node; None where Slurm does not say.
    gpus_per_node
        GPUs of each node; None where Slurm does not say.
    """

    name: str
    nodes: int
    cpus_per_node: int | None
    gpus_per_node: int | None

    def check(self, runs: Iterable[RunSpec]) -> None:
        """See that every run fits.

        Raises
        ------
        ClusterRefused
            A run needs more than the allocation has.
        """
        for run in runs:
            keys = "resources.nodes" + (" + spare_nodes" if run.spare_nodes else "")
            self._compare("nodes", run.all_nodes, self.nodes, keys)
            cpus = run.ranks_per_node * (run.resources.cpus_per_task or 1)
            keys = "ranks per node x resources.cpus_per_task"
            self._compare("CPUs per node", cpus, self.cpus_per_node, keys)
            gpus = run.resources.gpus_per_node
            self._compare("GPUs per node", gpus, self.gpus_per_node, "resources.gpus_per_node")

    def _compare(self, what: str, wanted: int, there: int | None, keys: str) -> None:
        if there is not None and wanted > there:
            raise ClusterRefused(
                f"the spec asks for {wanted} {what} ({keys}); the allocation {self.name} has "
                f"{there}",
                hint="begin a larger allocation with salloc, ask for less, or use `hpcrun submit`",
            )


def current() -> Inside | None:
    """The allocation around this process; None outside one, or where there is no srun."""
    if not os.environ.get("SLURM_JOB_ID") or shutil.which("srun") is None:
        return None
    allocation = steps.Allocation.current()
    cpus = _smallest(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    gpus = re.search(r"(\d+)$", os.environ.get("SLURM_GPUS_PER_NODE", ""))
    return Inside(
        allocation.name, len(allocation.nodes), cpus, int(gpus.group(1)) if gpus else None
    )


def _smallest(counts: str) -> int | None:
    """``8(x2),4`` -> 4."""
    found = [int(part) for part in re.findall(r"(?:^|,)(\d+)", counts)]
    return min(found, default=None)
