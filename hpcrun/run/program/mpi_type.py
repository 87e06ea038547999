"""The type of MPI for which srun prepares a run's ranks (``srun --mpi``).

With ``framework: mpi`` and no ``resources.mpi`` the job's Python is asked which MPI its mpi4py has,
on the batch host.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import PurePath

from hpcrun import ask_python
from hpcrun.container.rank_python import RankPython
from hpcrun.policy import frameworks
from hpcrun.run.protocol.output import say
from hpcrun.slurm import mpi_types
from hpcrun.state.plan import RunPlan

_PYTHON = re.compile(r"python[0-9.]*")
_TAKES = 60.0
_PROGRAM = ask_python.program("""
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
answer = MPI.Get_library_version()
""")


def of(run: RunPlan, python: RankPython) -> str | None:
    """Return ``--mpi`` of srun for a run's ranks; None for the site's default.

    Raises HpcrunError if the site has no type that the program's MPI knows.
    """
    wanted = run.resources.mpi or frameworks.of(run.entry.framework).pmi
    first = PurePath(run.entry.argv[0]).name if run.entry.kind == "command" else ""
    if wanted is None and first in frameworks.MPI_LAUNCHERS:
        # Its ranks would find two: Slurm's, and its own.
        return frameworks.NO_PMI
    if wanted != frameworks.MPI:
        return wanted
    if run.world_size == 1:
        return frameworks.NO_PMI
    found, why = mpi_types.choose(library(_words(run, python)))
    say(f"MPI: ranks are started with srun --mpi={found} ({why}); resources.mpi names another")
    return found


def _words(run: RunPlan, python: RankPython) -> list[str]:
    """Return the beginning of a program's command line up to Python; empty where it has none."""
    first = "" if run.entry.kind != "command" else run.entry.argv[0]
    if first and not _PYTHON.fullmatch(PurePath(first).name):
        return []
    if not python.is_anywhere:
        return []
    return [*python.prefix, first] if first else python.command()


def library(python: list[str]) -> str | None:
    """Return what the MPI of a Python's mpi4py says of itself; None without one."""
    if not python:
        return None
    with contextlib.suppress(OSError):
        found = ask_python.ask([*python, *_PROGRAM], timeout=_TAKES, cwd=None)
        return str(found.data or "").strip() or None
    return None
