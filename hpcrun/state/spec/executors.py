"""The executors that a cluster profile may name, and what follows from each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.shared_dataclass import dataclass


@dataclass(frozen=True)
class Executor:
    """How the runs of a cluster are started."""

    name: str
    """The profile's ``executor``."""
    queues: bool
    """Runs are jobs, which Slurm queues, groups into arrays and starts on its nodes."""

    @property
    def is_here(self) -> bool:
        """Runs have this machine for their node, with its files, memory and GPUs."""
        return not self.queues

    @staticmethod
    def of(cluster: Mapping[str, Any]) -> Executor:
        """Return the executor of a resolved profile."""
        return SLURM if cluster.get("executor") == SLURM.name else LOCAL


SLURM, LOCAL = Executor("slurm", queues=True), Executor("local", queues=False)
