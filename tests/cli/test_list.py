"""``hpcrun list`` as it is typed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcrun.state import permissions
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, shim_calls, slurm_shim


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    slurm_shim(tmp_path / "shim", squeue="200|PENDING|Priority||N/A\n")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    old = Experiment(tmp_path / "root", "old")
    old.submit((1, 2), when=T0)
    old.start(1, job_id="100_1")
    old.end(1)
    old.start(2, job_id="100_2")
    old.end(2, outcome="failed", kind="x", message="y")
    Experiment(tmp_path / "root", "young").submit((1,), job_id="200", when=T0 + 9)
    return tmp_path / "root"


def test_newest_first_with_one_query(root: Path, tmp_path: Path) -> None:
    data = json.loads(hpcrun("list", "--json", root=root).stdout)
    assert [one["name"] for one in data] == ["young", "old"]
    assert data[0]["states"] == {"pending": 1}
    assert data[0]["user"] == permissions.user_name(os.geteuid())
    assert data[1]["states"] == {"completed": 1, "failed": 1}
    assert data[1]["spec"] == "/home/someone/old.yaml"
    assert [call.split()[0] for call in shim_calls(tmp_path / "shim")] == ["squeue", "sacct"]


def test_text(root: Path) -> None:
    done = hpcrun("list", root=root)
    assert done.returncode == 0
    assert done.stdout.splitlines()[2].split()[:6] == [
        *("old", "2", "1", "completed,", "1", "failed"),
    ]


def test_a_broken_experiment_is_one_line_not_an_error(root: Path) -> None:
    (root / "old" / "submissions" / "1" / "plan.json").write_text("{")
    (root / "old" / "submissions" / "1" / "submission.json").write_text("{")
    (root / "empty" / "submissions").mkdir(parents=True)
    (root / "a-file").write_text("")
    done = hpcrun("list", "--json", root=root)
    assert done.returncode == 0
    data = {one["name"]: one for one in json.loads(done.stdout)}
    assert set(data) == {"young", "old", "empty"}
    assert data["old"]["runs"] is None
    assert "plan.json is not a plan" in data["old"]["problem"]
    assert data["empty"]["runs"] == 0


def test_empty_and_missing_roots(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        done = hpcrun("list", root=root)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"no experiments under {root}" in done.stderr
        assert json.loads(hpcrun("list", "--json", root=root).stdout) == []


def test_root_option_wins(root: Path, tmp_path: Path) -> None:
    done = hpcrun("list", "--root", str(root), "--json", root=tmp_path / "missing")
    assert len(json.loads(done.stdout)) == 2
