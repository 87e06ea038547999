"""How srun is to start the ranks of each framework."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcrun.container.rank_python import RankPython
from hpcrun.run.program import mpi_type
from hpcrun.slurm import mpi_types
from hpcrun.state.plan import Entry, RunPlan

PYTHON = RankPython()


def _run(framework: str, nodes: int = 2, mpi: str | None = None, **entry: object) -> RunPlan:
    program = {"kind": "script", "file": "train.py", "argv": [], "framework": framework, **entry}
    spec = {"resources": {"nodes": nodes, "ntasks_per_node": 1, "mpi": mpi}}
    return RunPlan(0, "0", "", {}, Entry.from_data(program), spec)


@pytest.mark.parametrize(
    ("framework", "expected"),
    [("auto", None), ("none", None), ("torchrun", "none"), ("single", "none"), ("jax", "none")],
)
def test_what_does_not_ask_for_mpi(framework: str, expected: str | None) -> None:
    """The site's default where nothing is known of a program, and nothing where much is."""
    assert mpi_type.of(_run(framework), PYTHON) == expected
    assert mpi_type.of(_run(framework, mpi="pmix"), PYTHON) == "pmix"


def test_mpirun_finds_no_pmi_but_its_own() -> None:
    words = {"kind": "command", "file": None, "argv": ["/opt/mpi/bin/mpirun", "-np", "4", "solver"]}
    assert mpi_type.of(_run("auto", nodes=1, **words), PYTHON) == "none"
    assert mpi_type.of(_run("auto", nodes=1, mpi="pmix", **words), PYTHON) == "pmix"
    assert mpi_type.of(_run("auto", **{**words, "argv": ["solver"]}), PYTHON) is None


def test_one_rank_needs_nobody() -> None:
    assert mpi_type.of(_run("mpi", nodes=1), PYTHON) == "none"
    assert mpi_type.of(_run("mpi", nodes=1, mpi="pmi2"), PYTHON) == "pmi2"


@pytest.mark.parametrize(
    ("entry", "asked"),
    [
        ({}, "Testing MPI 1"),
        ({"kind": "command", "file": None, "argv": ["PYTHON", "train.py"]}, "Testing MPI 1"),
        ({"kind": "command", "file": None, "argv": ["./solver", "train.py"]}, None),
    ],
    ids=["script", "python", "program"],
)
def test_the_job_s_python_tells_which_mpi_it_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    entry: dict[str, object],
    asked: str | None,
) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc:\n    initialize = True\n")
    text = "import mpi4py\nassert not mpi4py.rc.initialize\n"
    text += "def Get_library_version():\n    return 'Testing MPI 1'\n"
    (package / "MPI.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told: list[str | None] = []

    def choose(library: str | None) -> tuple[str, str]:
        told.append(library)
        return "pmix", "as a test says"

    monkeypatch.setattr(mpi_types, "choose", choose)
    if isinstance(words := entry.get("argv"), list):
        entry = {**entry, "argv": [sys.executable if word == "PYTHON" else word for word in words]}
    assert mpi_type.of(_run("mpi", **entry), PYTHON) == "pmix"
    assert told == [asked]
    assert "srun --mpi=pmix (as a test says); resources.mpi names another" in capfd.readouterr().out


def test_a_python_without_mpi4py_or_none_at_all() -> None:
    assert mpi_type.library([sys.executable, "-S"]) is None
    assert mpi_type.library(["/nowhere/python"]) is None
