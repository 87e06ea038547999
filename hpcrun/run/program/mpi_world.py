"""The end of a Python program whose ranks find each other by MPI, seen from inside (mpi4py).

The ranks' start-up file (`hpcrun.run.health.python_stacks`) calls `at_exit` with
``framework: mpi``, a worker after a function. An MPI that knows nothing of what srun prepared takes
each rank for the only one: as many copies work, and end well. And a rank that raises waits in
MPI_Finalize for the others, which wait for it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcrun.run.node.rank_processes import SCRATCH_VARIABLE
from hpcrun.state.node_layout import ScratchPaths

# In the environment of ranks with ``framework: mpi``.
VARIABLE = "HPCRUN_MPI"


def at_exit() -> None:
    """Note whether this process met others, and leave at once after an exception."""
    size = _size()
    if size is None or not os.environ.get(VARIABLE):
        return
    paths = ScratchPaths(Path(os.environ[SCRATCH_VARIABLE]))
    (paths.mpi_met if size > 1 else paths.mpi_alone).touch()
    if size > 1 and getattr(sys, "last_type", None) is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


def worked_alone(scratch: Path) -> bool:
    """Check that MPI took a rank of this node for the only one, and none for one of several."""
    paths = ScratchPaths(scratch)
    return paths.mpi_alone.exists() and not paths.mpi_met.exists()


def _size() -> int | None:
    """Return the number of ranks that MPI knows; None where it does not run."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return int(mpi.COMM_WORLD.size)
