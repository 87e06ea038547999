"""Experiments that depend on each other, submitted as one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import experiment
from tests.support import command
from tests.support.desk import PYTHON, Desk


class Specs:
    """Specs in one directory; on this machine, or on a desk's queue, behind which no Slurm is."""

    def __init__(self, directory: Path) -> None:
        self.desk = Desk(directory)
        self.root, self.code = self.desk.root, directory / "code"
        self.log = directory / "log"

    def write(self, name: str, command: str = "true", **more: Any) -> None:
        spec = {
            "entry": ["sh", "-c", command],
            "environment": {"python": PYTHON},
            "resources": {"time": "00:10:00"},
        }
        (self.code / f"{name}.yaml").write_text(json.dumps({**spec, **more}))

    def says(self, name: str, **more: Any) -> None:
        """A run that takes a moment and says its name."""
        self.write(name, f"sleep 0.3; echo {name} >> {self.log}", **more)

    def hpcrun(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = self.desk.environment
        return command.hpcrun(*arguments, "--root", self.root, cwd=self.code, env=environment)

    def here(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.hpcrun("submit", f"{name}.yaml", "cluster=local", "--wait", *arguments)

    def options(self) -> list[str]:
        """What sbatch was called with, but for the script."""
        calls = (self.desk.directory / "bin" / "calls").read_text().splitlines()
        return [" ".join(call.split()[:-1]) for call in calls]


@pytest.fixture
def specs(tmp_path: Path) -> Specs:
    return Specs(tmp_path)


def test_on_this_machine_one_after_the_other(specs: Specs) -> None:
    specs.says("pretrain")
    specs.says("finetune", depends_on="pretrain.yaml")
    specs.says("judge", depends_on=["finetune.yaml", {"spec": "pretrain.yaml", "when": "end"}])
    answer = specs.here("judge")
    assert answer.returncode == 0, answer.stderr
    assert specs.log.read_text().split() == ["pretrain", "finetune", "judge"]
    assert "all 3 runs have completed" in answer.stderr
    told = json.loads(specs.hpcrun("status", "judge", "--json").stdout)
    assert [run["experiment"] for run in told] == ["pretrain", "finetune", "judge"]
    alone = json.loads(specs.hpcrun("status", "judge/0", "--json").stdout)
    assert [run["experiment"] for run in alone] == ["judge"]
    again = json.loads(specs.here("judge", "--json").stdout)
    assert [one["experiment"] for one in again["before"]] == ["pretrain", "finetune"]
    assert {run["action"] for one in (again, *again["before"]) for run in one["runs"]} == {
        "completed"
    }


def test_what_depends_on_a_failure_does_not_start(specs: Specs, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    specs.write("pretrain", f"test -e {flag}")
    specs.says("finetune", depends_on="pretrain.yaml")
    specs.says("whatever", depends_on=[{"spec": "pretrain.yaml", "when": "end"}])
    answer = specs.here("finetune")
    assert answer.returncode == 1
    assert "did not complete: pretrain/0, finetune/0; " in answer.stderr
    assert not specs.log.exists()
    told = json.loads(specs.hpcrun("status", "finetune", "--json").stdout)
    assert [(run["state"], run["reason"]) for run in told[1:]] == [
        ("failed", "pretrain/0, which it depends on, did not complete")
    ]
    assert specs.here("whatever").returncode == 1
    assert specs.log.read_text().split() == ["whatever"]
    flag.touch()
    assert specs.here("finetune").returncode == 0
    assert specs.log.read_text().split() == ["whatever", "finetune"]


def test_in_the_foreground(specs: Specs) -> None:
    specs.says("pretrain")
    specs.says("finetune", depends_on="pretrain.yaml")
    answer = specs.hpcrun("run", "finetune.yaml")
    assert answer.returncode == 0, answer.stderr
    assert specs.log.read_text().split() == ["pretrain", "finetune"]


def _sweep(*values: int) -> dict[str, Any]:
    return {"config": {"x": 0}, "sweep": {"grid": {"config.x": list(values)}}}


def test_in_slurms_words(specs: Specs) -> None:
    specs.write("pretrain", **_sweep(1, 2, 3))
    specs.write("finetune", depends_on="pretrain.yaml")
    specs.write("each", depends_on=[{"spec": "pretrain.yaml", "each": True}], **_sweep(4, 5, 6))
    specs.write("last", depends_on=["finetune.yaml", {"spec": "each.yaml", "when": "end"}])
    plan = specs.hpcrun("plan", "last.yaml", "cluster=slurm")
    assert "after       finetune run 0 (success)\n" in plan.stdout
    assert "after       each runs 0-2 (end)\n" in plan.stdout
    dry = specs.hpcrun("submit", "last.yaml", "cluster=slurm", "--dry-run", "--json")
    assert json.loads(dry.stdout)["depends_on"][0]["experiment"] == "finetune"
    assert not specs.root.exists()
    answer = specs.hpcrun("submit", "last.yaml", "cluster=slurm")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["100", "101", "102", "103"]
    after = [
        "",
        "--dependency=afterok:100 --kill-on-invalid-dep=yes",
        "--dependency=aftercorr:100 --kill-on-invalid-dep=yes",
        "--dependency=afterok:101,afterany:102 --kill-on-invalid-dep=yes",
    ]
    assert specs.options() == after
    # Of what is queued already by then: the runs' own tasks, a whole array by its id.
    specs.write("pretrain", **_sweep(2, 7))
    specs.write("finetune", "echo other", depends_on="pretrain.yaml")
    answer = specs.hpcrun("submit", "finetune.yaml", "cluster=slurm")
    assert answer.returncode == 0, answer.stderr
    assert specs.options()[4:] == [
        "",
        "--dependency=afterok:100_1:104 --kill-on-invalid-dep=yes",
    ]
    specs.write("each", depends_on=[{"spec": "pretrain.yaml", "each": True}], **_sweep(4, 5, 6))
    wrong = specs.hpcrun("submit", "each.yaml", "cluster=slurm")
    assert wrong.returncode == 2
    assert "there is no pretrain/0 for each/0 to wait for" in wrong.stderr


def test_weights_that_are_still_to_come(specs: Specs) -> None:
    """What is initialized from is looked for at submission, unless it is waited for."""
    origin = {"checkpoint": {"initialize_from": "pretrain/0"}}
    specs.write("pretrain")
    specs.write("finetune", depends_on="pretrain.yaml", **origin)
    specs.write("alone", **origin)
    wrong = specs.hpcrun("submit", "alone.yaml", "cluster=slurm")
    assert wrong.returncode == 2
    assert "run 0: checkpoint.initialize_from: pretrain/0: there is no experiment" in wrong.stderr
    assert not specs.root.exists()
    answer = specs.hpcrun("submit", "finetune.yaml", "cluster=slurm")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("depends_on", "message"),
    [
        ("pretrian.yaml", "there is no file 'pretrian.yaml'"),
        ([{"spec": "pretrain.yaml", "wen": "end"}], "unknown key; 'depends_on.0' accepts"),
        ([{"spec": "pretrain.yaml", "when": "start"}], "accepted is success or end"),
        ([{"spec": "pretrain.yaml", "when": "end", "each": True}], "with when: end is false"),
        ("finetune.yaml", "depends_on goes in a circle: finetune.yaml -> finetune.yaml"),
        (3, "accepted is a spec's path"),
    ],
)
def test_mistakes(specs: Specs, depends_on: Any, message: str) -> None:
    specs.write("pretrain")
    specs.write("finetune", depends_on=depends_on)
    answer = specs.hpcrun("submit", "finetune.yaml", "cluster=slurm")
    assert answer.returncode == 2
    assert message in answer.stderr
    assert not experiment(specs.root, "pretrain").directory.exists()
