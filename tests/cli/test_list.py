"""``hpcrun list`` as it is typed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hpcrun.state import files, permissions
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
        absent = "" if root == tmp_path else " (no such directory)"
        assert done.stderr == f"no experiments under {root}{absent}\n"
        assert json.loads(hpcrun("list", "--json", root=root).stdout) == []


def test_root_option_wins(root: Path, tmp_path: Path) -> None:
    done = hpcrun("list", "--root", str(root), "--json", root=tmp_path / "missing")
    assert len(json.loads(done.stdout)) == 2


def priced(
    root: Path, name: str, prices: dict[str, object] | None, spec: dict[str, object]
) -> Experiment:
    """An experiment of four runs that held four GPUs for two hours each; the last one waits."""
    study = Experiment(root, name)
    resources = {"nodes": 1, "gpus_per_node": 4, "ntasks_per_node": None}
    paths = study.submit(range(4), spec={"resources": resources, **spec}, when=T0 + 20)
    plan = json.loads(paths.plan.read_text())
    plan["cluster"] |= {"prices": prices} if prices else {}
    paths.plan.write_text(json.dumps(plan))
    for run, loss in enumerate([0.5, 0.25, float("nan")]):
        study.start(run, job_id=f"100_{run}", when=T0 + 60)
        study.metrics(run, 1, [1, 2], loss=loss, eval=1 - loss)
        end = {"event": "attempt_ended", "time": T0 + 7260, "attempt": 1, "outcome": "failed"}
        files.append(study.run(run).ledger, {**end, "cause": {"kind": "launch"}})
    return study


@pytest.mark.parametrize(
    ("prices", "spec", "best", "hours", "money"),
    [
        (
            {"currency": "EUR", "gpu_hour": 2},
            {},
            "loss 0.25 (run 1)",
            "24.00 GPU-hours",
            "48.00 EUR",
        ),
        (
            None,
            {"objective": {"metric": "eval", "mode": "max"}},
            "eval 0.75 (run 1)",
            "24.00 GPU-hours",
            "-",
        ),
        ({"cpu_hour": 1}, {"objective": None}, "-", "24.00 GPU-hours", "-"),
        (None, {"objective": {"metric": "never", "mode": "min"}}, "-", "24.00 GPU-hours", "-"),
        (None, {"objective": {"metric": "loss", "mode": None}}, "-", "24.00 GPU-hours", "-"),
    ],
)
def test_best_hours_and_cost(
    root: Path,
    prices: dict[str, object] | None,
    spec: dict[str, object],
    best: str,
    hours: str,
    money: str,
) -> None:
    """What is not known is left out, and nothing is guessed."""
    priced(root, "priced", prices, spec)
    header, row, *others = hpcrun("list", root=root).stdout.splitlines()
    assert re.split(r"  +", header)[3:6] == ["BEST", "HOURS", "COST"]
    assert re.split(r"  +", row)[3:6] == [best, hours, money]
    data = {one["name"]: one for one in json.loads(hpcrun("list", "--json", root=root).stdout)}
    found = data["priced"]
    assert (found["best"] is None) == (best == "-")
    assert [one["paid"] for one in found["hours"]] == [24.0]
    assert (found["hours"][0]["money"] is None) == (money == "-")
    assert (data["young"]["best"], data["young"]["hours"]) == (None, [])
    assert re.split(r"  +", others[0])[3:6] == ["-", "-", "-"]


def test_hours_are_those_of_cost(root: Path) -> None:
    priced(root, "priced", None, {})
    listed = {one["name"]: one for one in json.loads(hpcrun("list", "--json", root=root).stdout)}
    paid = json.loads(hpcrun("status", "--cost", "priced", "--json", root=root).stdout)
    assert listed["priced"]["hours"][0]["paid"] == paid["total"][0]["paid"]


def test_hours_of_an_attempt_without_an_end_go_to_its_last_sign(root: Path) -> None:
    """Its job is forgotten: how long it held its nodes after that, nobody knows."""
    study = Experiment(root, "lost")
    study.submit(job_id="300", when=T0)
    study.start(0, job_id="300", when=T0)
    study.metrics(0, 1, [1, 3600], loss=1.0)
    data = {one["name"]: one for one in json.loads(hpcrun("list", "--json", root=root).stdout)}
    assert data["lost"]["states"] in ({"unknown": 1}, {"failed": 1})
    assert data["lost"]["hours"][0]["paid"] == 2.0
