"""The environment variables of ranks in a frozen environment, and the Python that they become."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.run import frozen_python
from hpcrun.state.environment.environment_names import PYTHON, RECORD

OWN = str(Path(sys.executable).parent)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "environment"
    (made / PYTHON).parent.mkdir(parents=True)
    (made / RECORD).write_text(json.dumps({"moved": {"/shared/more": "layers/1"}}))
    return made


def test_variables(root: Path) -> None:
    inherited = {
        "PATH": f"{OWN}:/usr/bin:{OWN}:/bin",
        "PYTHONPATH": "/root/e/submissions/1/hpcrun.zip:/shared/more:/other",
        **{"PYTHONHOME": "/usr", "VIRTUAL_ENV": "/shared/venv", "CONDA_PREFIX": "/shared/conda"},
        "KEPT": "as it is",
    }
    assert frozen_python.variables(str(root), inherited, "/tmp/scratch/hpcrun.zip") == {
        "PATH": f"{root}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"/tmp/scratch/hpcrun.zip:{root}/layers/1:/other",
        **{"VIRTUAL_ENV": str(root), "CONDA_PREFIX": str(root)},
        **{"PYTHONNOUSERSITE": "1", "KEPT": "as it is"},
    }


def test_hpcrun_stays_where_there_is_no_copy_of_it(root: Path) -> None:
    found = frozen_python.variables(str(root), {"PYTHONPATH": "/shared/hpcrun.zip"})
    assert found["PYTHONPATH"] == "/shared/hpcrun.zip"
    assert "CONDA_PREFIX" not in found


@pytest.mark.parametrize(
    ("given", "rank"),
    [(["--rank", "3"], "2"), ([], "3"), (["--warm", "n2"], "1"), (["--warm", "n1,n2"], "2")],
)
def test_a_rank_becomes_its_nodes_python(root: Path, given: list[str], rank: str) -> None:
    """By its number, of the local launcher or of Slurm; a warm one by the node of its step."""
    python = root / PYTHON
    python.write_text('#!/bin/sh\necho "$VIRTUAL_ENV" "$@"\n')
    python.chmod(0o755)
    launch = root.parent / "launch.json"
    nodes = [
        {"name": "n1", "python": "/gone", "scratch": "/"},
        {"name": "n2", "python": str(python), "scratch": "/scratch"},
    ]
    launch.write_text(json.dumps({"ranks_per_node": 2, "nodes": nodes}))
    argv = [sys.executable, "-S", "-m", "hpcrun.run.frozen_python", str(launch), *given]
    repository = str(Path(__file__).parents[2])
    environment = {"PATH": os.defpath, "PYTHONPATH": repository, "SLURM_PROCID": rank}
    said = subprocess.check_output(argv, env=environment, text=True)
    assert said.split() == [str(root), "-m", "hpcrun.run.worker", str(launch), *given]


@pytest.mark.parametrize(
    ("mode", "is_complete", "expected"),
    [(0o700, True, True), (0o700, False, False), (0o755, True, False), (None, True, False)],
)
def test_a_spare_nodes_copy_is_the_users_and_whole(
    tmp_path: Path, mode: int | None, is_complete: bool, expected: bool
) -> None:
    """It is looked for at the path of another node's, which anybody may have made here."""
    copy = tmp_path / "hpcrun-data-0-a"
    if mode is not None:
        copy.mkdir()
        if is_complete:
            (copy / "complete").write_text("")
        copy.chmod(mode)
    assert frozen_python.is_mine_and_complete(f"{copy}/data/environment") is expected


def test_a_link_to_a_copy_is_none(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir(mode=0o700)
    (tmp_path / "copy" / "complete").write_text("")
    (tmp_path / "link").symlink_to("copy")
    assert frozen_python.is_mine_and_complete(f"{tmp_path}/copy/data/environment")
    assert not frozen_python.is_mine_and_complete(f"{tmp_path}/link/data/environment")


def test_a_warm_rank_of_a_spare_node_leaves_where_there_is_no_copy(tmp_path: Path) -> None:
    launch = tmp_path / "launch.json"
    node = {"name": "n1", "python": f"{tmp_path}/copy/data/environment/{PYTHON}", "scratch": "/"}
    launch.write_text(json.dumps({"ranks_per_node": 1, "nodes": [node]}))
    argv = [sys.executable, "-m", "hpcrun.run.frozen_python", str(launch), "--warm", "n3"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "SLURM_PROCID": "0"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = "no warm rank: this node has no copy of the environment in"
    assert done.stderr == f"{said} {tmp_path}/copy/data/environment\n"


def test_it_imports_next_to_nothing() -> None:
    code = "import sys; import hpcrun.run.frozen_python; print(*sys.modules)"
    repository = str(Path(__file__).parents[2])
    argv = [sys.executable, "-S", "-c", code]
    found = subprocess.check_output(argv, env={"PYTHONPATH": repository}, text=True).split()
    assert {name for name in found if name.startswith("hpcrun")} == {
        *("hpcrun", "hpcrun.run", "hpcrun.run.frozen_python", "hpcrun.state"),
        *("hpcrun.state.environment", "hpcrun.state.environment.environment_names"),
    }
