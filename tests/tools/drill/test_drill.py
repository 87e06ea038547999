"""``hpcrun drill`` as it is typed; the drills themselves are in `tests.test_training`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from hpcrun.policy import faults as policy_faults
from tests.support import command


def _drill(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.hpcrun("drill", *arguments, "--root", root)


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(tmp_path: Path) -> None:
    answer = _drill(tmp_path / "root", "demo", "cluster=local", "--dry-run")
    assert answer.returncode == 0
    lines = answer.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        fault for fault in policy_faults.FAULTS if fault != policy_faults.LOSE_NODE
    ]
    assert not (tmp_path / "root").exists()


def test_a_script_that_saves_by_itself_has_no_checkpoint_of_ours_to_corrupt(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "e.yaml").write_text("name: plain\nentry: train.py\ncluster: local\n")
    spec = str(tmp_path / "e.yaml")
    answer = _drill(tmp_path / "root", spec, "--dry-run", "--json")
    assert json.loads(answer.stdout)["faults"] == ["kill-rank", "stop-rank", "preempt"]
    answer = _drill(tmp_path / "root", spec, "checkpoint.every=5", "--dry-run", "--json")
    assert "corrupt-checkpoint" in json.loads(answer.stdout)["faults"]


def test_a_node_is_lost_by_default_where_a_spare_stands_by(tmp_path: Path) -> None:
    answer = _drill(
        tmp_path, "demo", "cluster=local", "resources.spare_nodes=1", "--dry-run", "--json"
    )
    said = json.loads(answer.stdout)
    assert said == {
        "experiment": "demo-drill",
        "faults": list(policy_faults.FAULTS),
        "steps": policy_faults.STEPS,
    }


def test_faults_come_in_the_order_given(tmp_path: Path) -> None:
    faults = ["--fault", "preempt", "--fault", "kill-rank", "--fault", "preempt"]
    answer = _drill(tmp_path, "demo", "cluster=local", "--dry-run", "--json", "--steps=9", *faults)
    said = json.loads(answer.stdout)
    assert said["faults"] == ["preempt", "kill-rank", "preempt"]
    assert said["steps"] == 9


def test_a_fault_that_nobody_knows(tmp_path: Path) -> None:
    answer = _drill(tmp_path, "demo", "cluster=local", "--fault", "meteor")
    assert answer.returncode == 2
    assert "'kill-rank'" in answer.stderr


def test_a_run_that_never_saves_has_no_checkpoint_to_corrupt(tmp_path: Path) -> None:
    answer = _drill(tmp_path, "demo", "cluster=local", "checkpoint.every=null", "--dry-run")
    assert answer.returncode == 2
    assert "corrupt-checkpoint needs a run that saves by itself" in answer.stderr
    assert "checkpoint.every=N" in answer.stderr


def test_a_drill_that_cannot_come_to_an_end_is_refused(tmp_path: Path) -> None:
    never = _drill(tmp_path, "demo", "cluster=local", "recovery.hang_after=null", "--dry-run")
    assert never.returncode == 2
    assert "stop-rank is never noticed: recovery.hang_after is null" in never.stderr
    alone = _drill(tmp_path, "demo", "cluster=local", "checkpoint.keep=1", "--dry-run")
    assert alone.returncode == 2
    assert "add checkpoint.keep=2" in alone.stderr
