"""A real multi-node Slurm on one machine, for tests and by hand (``python -m tests.testbed``)."""

from .cluster import Cluster
from .prerequisites import VERSIONS, Unavailable, missing

__all__ = ["VERSIONS", "Cluster", "Unavailable", "missing"]
