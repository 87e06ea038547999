"""``hpcrun show`` as it is typed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml

from hpcrun.state import files
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    study = Experiment(tmp_path)
    study.submit((1, 2), swept={1: {"config.lr": 2e-5}, 2: {"config.lr": 0.1}})
    return study


def test_summary(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("show", "study/1", root=tmp_path)
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert found["job_id"] == "100_1"
    assert found["swept"] == "config.lr=2e-05"
    assert found["entry"] == "train.py --lr=0.001"
    data = json.loads(hpcrun("show", "study/1", "--json", root=tmp_path).stdout)
    assert data["directory"] == str(tmp_path / "study" / "runs" / "1")


def test_summary_says_how_the_run_is_doing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    study = Experiment(tmp_path)
    submission = study.submit((1,)).submission
    data = json.loads(submission.read_text())
    data["code"]["git"] = {"commit": "c0ffee", "branch": "main", "dirty": True}
    files.write_json(submission, data)
    study.start(1, job_id="100_1")
    study.metrics(1, 1, [1, 2, 3], loss=0.25, accuracy=0.5)
    study.end(1, outcome="failed", kind="out_of_memory")
    shown = hpcrun("show", "study/1", root=tmp_path).stdout.splitlines()
    found = dict(line.split(maxsplit=1) for line in shown)
    assert found["state"] == "failed"
    assert found["cause"] == "out_of_memory"
    assert found["step"] == "3 of 100"
    assert found["metrics"] == "loss=0.25, accuracy=0.5"
    assert found["commit"] == "c0ffee, and uncommitted changes"
    data = json.loads(hpcrun("show", "study/1", "--json", root=tmp_path).stdout)
    assert (data["state"], data["metrics"]["loss"], data["dirty"]) == ("failed", 0.25, True)


def test_config(study: Experiment, tmp_path: Path) -> None:
    text = hpcrun("show", "study/1", "--config", root=tmp_path).stdout
    data = json.loads(hpcrun("show", "study/1", "--config", "--json", root=tmp_path).stdout)
    assert yaml.safe_load(text) == data
    assert data["config"]["lr"] == 2e-5


def test_script_and_path(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("show", "study/1", "--script", root=tmp_path)
    assert done.stdout == study.paths.submission(1).script(0).read_text()
    done = hpcrun("show", "study/1", "--work", root=tmp_path)
    assert done.stdout == f"{tmp_path}/study/runs/1/work\n"
    assert done.stderr == "study/1 has written nothing there\n"
    done = hpcrun("show", "study/1", "--path", root=tmp_path)
    assert done.stdout == f"{tmp_path}/study/runs/1\n"


def test_deepspeed_as_planned_then_as_run(study: Experiment, tmp_path: Path) -> None:
    def shown() -> dict[str, object]:
        found = json.loads(hpcrun("show", "study/1", "--deepspeed", root=tmp_path).stdout)
        assert isinstance(found, dict)
        return found

    assert shown()["train_batch_size"] == 8
    files.write_json(study.start(1, 1).deepspeed, {"train_batch_size": 16})
    assert shown() == {"train_batch_size": 16}
    study.start(1, 2).deepspeed.write_text("{")
    assert shown() == {"train_batch_size": 16}


def test_code(study: Experiment, tmp_path: Path) -> None:
    study.paths.code.mkdir()
    (tmp_path / "train.py").write_text("print()\n")
    with tarfile.open(study.paths.code / "abc.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "train.py", "pkg/train.py")
    done = hpcrun("show", "study/1", "--code", root=tmp_path)
    assert done.stdout == "pkg/train.py\n"
    assert "no git" in done.stderr
    data = json.loads(hpcrun("show", "study/1", "--code", "--json", root=tmp_path).stdout)
    assert (data["members"], data["digest"]) == (["pkg/train.py"], "abc")
    (study.paths.code / "abc.tar.gz").write_bytes(b"not a tar")
    done = hpcrun("show", "study/1", "--code", root=tmp_path)
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study",), "is 2 runs (study/1-2); show takes one"),
        (("study/7",), "study has no run 7"),
        (("study/1", "--code"), "cannot be read"),
        ((), "your newest experiment is 2 runs (study/1-2)"),
        (("study", "lr=7"), "no run has config.lr=7; its values are 2e-05, 0.1"),
    ],
)
def test_wrong_input(
    study: Experiment, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hpcrun("show", *arguments, root=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_no_script_under_the_local_executor(study: Experiment, tmp_path: Path) -> None:
    plan = study.paths.submission(1).plan
    plan.write_text(plan.read_text().replace("#!/bin/bash\\nexec true\\n", ""))
    done = hpcrun("show", "study/1", "--script", root=tmp_path)
    assert done.returncode == 2
    assert "no sbatch script" in done.stderr
