"""The end of a program's Python, where a module stands in for mpi4py's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.run.health import python_stacks
from hpcrun.run.node.rank_processes import SCRATCH_VARIABLE
from hpcrun.run.program import mpi_world

_MPI = """
import atexit, os, sys, types
class World: size = {size}
mpi = types.ModuleType("mpi4py.MPI")
mpi.Is_initialized, mpi.Is_finalized, mpi.COMM_WORLD = lambda: True, lambda: {final}, World
sys.modules["mpi4py.MPI"] = mpi
"""


def _program(
    tmp_path: Path, text: str, size: int = 4, *, final: bool = False, named: bool = True
) -> subprocess.CompletedProcess[str]:
    start_up = tmp_path / "start"
    python_stacks.write_start_up(start_up)
    root = str(Path(mpi_world.__file__).parents[3])
    variables = {"PYTHONPATH": f"{start_up}:{root}", SCRATCH_VARIABLE: str(tmp_path)}
    variables |= {mpi_world.VARIABLE: "1"} if named else {}
    code = _MPI.format(size=size, final=final) + text
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("size", "alone"), [(1, True), (4, False)], ids=["the only one", "one of four"]
)
def test_whether_ranks_met_is_noted(tmp_path: Path, size: int, alone: bool) -> None:
    assert not mpi_world.worked_alone(tmp_path)
    assert _program(tmp_path, "pass", size).returncode == 0
    assert mpi_world.worked_alone(tmp_path) == alone


def test_a_process_beside_ranks_that_met_proves_nothing(tmp_path: Path) -> None:
    _program(tmp_path, "pass", 4)
    _program(tmp_path, "pass", 1)
    assert not mpi_world.worked_alone(tmp_path)


@pytest.mark.parametrize("how", [{"final": True}, {"named": False}], ids=["ended", "not named"])
def test_an_mpi_that_is_over_or_of_another_framework_tells_nothing(
    tmp_path: Path, how: dict[str, bool]
) -> None:
    _program(tmp_path, "pass", 1, **how)
    assert not mpi_world.worked_alone(tmp_path)


# Like mpi4py's MPI_Finalize: after all that is registered with Python.
_FINALIZE = """
import sys
class Finalize:
    def __del__(self, say=sys.__stdout__.write):
        say("finalized")
sys.modules["mpi4py.MPI"].last = Finalize()
"""


@pytest.mark.parametrize(
    ("text", "code", "waits"),
    [("raise ValueError('of one rank')", 1, False), ("sys.exit(3)", 3, True), ("pass", 0, True)],
    ids=["raises", "leaves", "ends"],
)
def test_a_rank_that_raises_does_not_wait_for_the_others(
    tmp_path: Path, text: str, code: int, waits: bool
) -> None:
    done = _program(tmp_path, f"{_FINALIZE}print('done')\n{text}")
    assert done.returncode == code
    assert ("finalized" in done.stdout) == waits
    assert "done" in done.stdout
    assert ("ValueError: of one rank" in done.stderr) == (not waits)
