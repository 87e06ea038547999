"""MPI programs (mpi4py) on a real Slurm: MPICH by PMI2 on 22.05, Open MPI by PMIx on 24.11."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_REFUSED
from tests.cluster.ward import Ward
from tests.frameworks.test_programs import python_of
from tests.frameworks.third_party import SPECS
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

pytestmark = pytest.mark.timeout(300)
_MPI = {VERSIONS[0]: ("mpich", "pmi2"), VERSIONS[1]: ("openmpi", "pmix")}
_PROGRAM = SPECS.parent / "programs" / "mpi_steps.py"


def _python(mpi: str) -> str:
    return str(Path(python_of("frameworks")).parents[1] / mpi / "bin" / "python")


def _spec(mpi: str, *args: str, **more: Any) -> dict[str, Any]:
    shape = {"nodes": 2, "ntasks_per_node": 2, "time": "00:05:00", "mem": 2000}
    return {
        **{"cluster": "bed", "entry": "mpi_steps.py", "args": [*args]},
        **{"environment": {"python": _python(mpi)}, "resources": shape},
        "progress": {"pattern": r"step (?P<step>\d+): sum (?P<sum>\S+)"},
        "recovery": {"stop_signal": "SIGTERM", "resume": {"when": "step.txt"}, "max_failures": 1},
        **more,
    }


def _logs(ward: Ward, name: str, attempt: int) -> list[str]:
    found = ward.paths(name).attempt(attempt).rank_logs()
    return [path.read_text() for _, path in sorted(found.items())]


def _begin(ward: Ward, name: str, steps: int) -> list[str]:
    """Submit the program on two nodes, see its steps, and return the nodes."""
    ward.write(_PROGRAM.name, _PROGRAM.read_text())
    mpi, _ = _MPI[ward.cluster.version]
    spec = _spec(mpi, str(steps), "1", framework="mpi")
    del spec["recovery"]["max_failures"]
    ward.hpcrun("submit", ward.spec(name, spec), "--new")
    until(lambda: "step 5" in "".join(_logs(ward, name, 1)), "its steps", 60)
    nodes: list[str] = ward.status(name)[0]["nodes"]
    return nodes


def _assert_met(ward: Ward, name: str, nodes: list[str], steps: int) -> None:
    """In attempt 2 all four ranks knew each other, and began where rank 0 had come to."""
    logs = _logs(ward, name, 2)
    (began,) = {int(found[1]) for log in logs if (found := re.search(r"from (\d+)$", log, re.M))}
    assert 5 <= began < steps
    hosts = ",".join(sorted(nodes * 2))
    assert [log.partition(", from")[0].rpartition("\n")[2] for log in logs] == [
        f"rank {rank} of 4 on {hosts}" for rank in range(4)
    ]
    assert f"step {steps}: sum 10" in logs[0]


def test_ranks_find_each_other_by_slurms_pmi_and_a_killed_one_ends_all(slurm: Cluster) -> None:
    ward = Ward(slurm, "mpi")
    nodes = _begin(ward, "mpi-killed", 20)
    ward.kill(nodes[1], "[m]pi_steps.py")
    ward.wait_for_end("mpi-killed")
    assert ward.kinds("mpi-killed") == ["rank_crash", None], ward.explain("mpi-killed")
    # Open MPI's other ranks may have Slurm end the step before srun hears of the killed ones.
    said = ward.attempts("mpi-killed")[0].cause["message"]
    assert "was ended by SIGKILL" in said or "left in the midst of MPI" in said, said
    _assert_met(ward, "mpi-killed", nodes, 20)
    said = ward.hpcrun("logs", "mpi-killed", "--stream", "batch").stdout
    assert f"srun --mpi={_MPI[slurm.version][1]} (for " in said
    ward.assert_reconciled("mpi-killed")


@pytest.mark.usually
def test_a_preempted_program_is_asked_to_stop_and_comes_back(slurm: Cluster) -> None:
    ward = Ward(slurm, "mpi")
    nodes = _begin(ward, "mpi-preempted", 60)
    ward.preempt(nodes, 1)
    ward.wait_for_end("mpi-preempted")
    assert ward.kinds("mpi-preempted") == ["preempted", None], ward.explain("mpi-preempted")
    _assert_met(ward, "mpi-preempted", nodes, 60)
    # It heard its stop signal, and left by itself.
    said = ward.hpcrun("logs", "mpi-preempted", "--stream", "batch").stdout
    assert "Exited with exit code 75" in said
    assert "Killed" not in said
    ward.assert_reconciled("mpi-preempted")


@pytest.mark.usually(VERSIONS[0])
def test_programs_that_say_nothing_of_mpi_and_ranks_that_raise(slurm: Cluster) -> None:
    """The site's MpiDefault is PMI2, as SLURM_MPI_TYPE has it for one job."""
    ward = Ward(slurm, "mpi")
    ward.write(_PROGRAM.name, _PROGRAM.read_text())
    ward.write("by_shell.sh", 'env | grep ^PMI_FD\n"$0" mpi_steps.py 1 1 | cat\n')
    default = {"setup": ["export SLURM_MPI_TYPE=pmi2"], "python": _python("mpich")}
    shell = {"entry": ["bash", "-c", ". ./by_shell.sh", _python("mpich")], "args": []}
    runs: dict[str, dict[str, Any]] = {
        "mpi-shell": _spec("mpich", **shell, environment=default),
        "mpi-single": _spec("mpich", **shell, environment=default, framework="single"),
        "mpi-raise": _spec("mpich", "2", "1", "raise"),
        "mpi-abort": _spec("mpich", "2", "1", "abort"),
        "mpi-alone": _spec("mpich", "1", "1", framework="mpi"),
    }
    runs["mpi-single"]["resources"] = {"nodes": 1, "time": "00:05:00", "mem": 2000}
    runs["mpi-alone"]["resources"]["mpi"] = "none"
    refused = ward.hpcrun("check", ward.spec("mpi-alone", runs["mpi-alone"]), "resources.mpi=pmi3",
                          check=False)  # fmt: skip
    assert refused.returncode == EXIT_REFUSED, refused.stderr
    assert "srun knows no 'pmi3' (srun --mpi=list): it has " in refused.stdout + refused.stderr
    for name, spec in runs.items():
        spec["resources"]["mem"] = 1000
        ward.hpcrun("submit", ward.spec(name, spec), "--new")
    ward.wait_for_end(["mpi-shell", "mpi-single", "mpi-alone"])
    ward.wait_for_end(["mpi-raise", "mpi-abort"], "failed")

    def log(name: str) -> str:
        return ward.paths(name).attempt(1).rank_log(0).read_text()

    # Through a shell, whose descriptors are those of the rank.
    assert "PMI_FD=" in log("mpi-shell")
    assert "rank 0 of 4 on" in log("mpi-shell")
    # What has nothing to do with MPI sees nothing of it.
    assert "PMI_FD=" not in log("mpi-single")
    assert "rank 0 of 1 on" in log("mpi-single")
    (raised,), (aborted,) = ward.attempts("mpi-raise"), ward.attempts("mpi-abort")
    assert raised.cause["message"].endswith("raised ValueError: of one rank")
    assert raised.cause["rank"] == 1
    assert (aborted.cause["rank"], aborted.cause["exit_code"]) == (1, 7)
    told = "its 4 ranks never met: each worked alone"
    assert ward.attempts("mpi-alone")[0].alone == told
    assert "name another type with resources.mpi" in ward.hpcrun("why", "mpi-alone").stdout
