"""``hpcrun clean`` as it is typed, over checkpoints with real manifests."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.control import cleanup
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files as state_files
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.manifest import File, Manifest
from tests.support import users
from tests.support.command import hpcrun, start
from tests.support.experiment import T0, Experiment, path_with, slurm_shim

DAY = 86_400.0


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return slurm_shim(tmp_path / "shim", squeue="100_3|RUNNING|None|node1|N/A\n")


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    """Run 1 completed, run 2 failed, run 3 runs; each has saved three times."""
    study = Experiment(tmp_path / "root")
    study.submit((1, 2, 3))
    for run in (1, 2, 3):
        study.start(run, job_id=f"100_{run}")
        study.log(run, 1, 0, "step 1\n")
        save(study, run, {10: 3.0, 20: 1.0, 30: 2.0})
    study.end(1)
    study.end(2, outcome="failed", kind="rank_crash", message="x")
    return study


def save(study: Experiment, run: int, losses: dict[int, float]) -> None:
    """Complete checkpoints of 1000 bytes and a manifest."""
    for step, loss in losses.items():
        directory = study.run(run).checkpoint(step, 1)
        directory.mkdir(parents=True)
        (directory / "weights.pt").write_bytes(b"w" * 1000)
        files = {"weights.pt": File(1000, sha256="0" * 64)}
        Manifest(step, 1, T0, 2, 2, 8, files, {"loss": loss}).write(directory)


def steps(study: Experiment, run: int) -> list[int]:
    """The checkpoints that are there, by the names of their directories."""
    found = study.run(run).checkpoints.glob("step-*")
    return sorted(int(path.name[5:13]) for path in found)


def clean(study: Experiment, *arguments: str) -> list[dict[str, Any]]:
    """What ``--json`` says, without and then with ``--dry-run`` taken away."""
    root = study.paths.directory.parent
    done = hpcrun("clean", "study", "--yes", "--json", *arguments, root=root)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_old_checkpoints_of_what_is_over(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("clean", "study", "--yes", root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["RUN", "STATE", "WHAT", "COUNT", "SIZE"]
    # One that failed keeps the two that its own checkpoint.keep says.
    assert [line[:4] for line in lines[1:]] == [
        ["study/1", "completed", "checkpoint", "2"],
        ["study/2", "failed", "checkpoint", "1"],
    ]
    assert "left alone: study/3: running, not over" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("freed 4.")
    assert [steps(study, run) for run in (1, 2, 3)] == [[30], [20, 30], [10, 20, 30]]
    again = hpcrun("clean", "study", root=tmp_path / "root")
    assert (again.returncode, again.stdout) == (0, "")
    assert "there is nothing to remove" in again.stderr


def test_all_checkpoints(study: Experiment) -> None:
    found = clean(study, "--checkpoints", "all")
    assert [len(one["items"]) for one in found] == [3, 3, 0]
    assert all(item["removed"] for one in found for item in one["items"])
    # The newest goes last, so that a run whose cleaning was cut short can still go on.
    assert [Path(item["path"]).name[5:13] for item in found[0]["items"]] == [
        *("00000010", "00000020", "00000030"),
    ]
    assert [steps(study, run) for run in (1, 2, 3)] == [[], [], [10, 20, 30]]


def test_the_best_stay(tmp_path: Path, shim: Path) -> None:
    study = Experiment(tmp_path / "root")
    study.submit((1,), spec={"checkpoint": {"keep_best": 1, "keep_every": 10}})
    study.start(1)
    save(study, 1, {10: 3.0, 20: 1.0, 30: 2.0})
    study.end(1)
    clean(study)
    assert steps(study, 1) == [20, 30]


def test_what_is_left_of_saves_and_crashes(study: Experiment) -> None:
    paths = study.run(1)
    for name in ("bad-step-00000005-a1", ".trash-step-00000004-a1", "step-00000040-a1"):
        (paths.checkpoints / name).mkdir()
        (paths.checkpoints / name / "weights.pt").write_bytes(b"w" * 10)
    left = time.time() - cleanup._SETTLED - 1
    os.utime(paths.checkpoints / "step-00000040-a1", (left, left))
    # Just written: its manifest may be another host's that this one does not see yet.
    (paths.checkpoints / "step-00000050-a1").mkdir()
    paths.universal("step-00000030-a1").mkdir(parents=True)
    (paths.universal("step-00000030-a1") / "shard").write_bytes(b"w" * 20)
    (paths.directory / ".intent.json.0123abcd.tmp").write_text("{")
    (paths.attempt(1).directory / ".launch.json.0123abcd.tmp").write_text("{")
    found = {}
    for item in clean(study)[0]["items"]:
        found.setdefault(item["kind"], []).append((Path(item["path"]).name, item["bytes"]))
    assert found.pop("checkpoint")
    assert found == {
        "conversion": [("universal", 20)],
        "damaged checkpoint": [("bad-step-00000005-a1", 10)],
        "incomplete checkpoint": [(".trash-step-00000004-a1", 10), ("step-00000040-a1", 10)],
        "temporary file": [(".intent.json.0123abcd.tmp", 1), (".launch.json.0123abcd.tmp", 1)],
    }
    assert sorted(path.name for path in paths.checkpoints.iterdir()) == [
        *("step-00000030-a1", "step-00000050-a1"),
    ]
    assert [path.name[0] for path in paths.directory.iterdir() if path.name[0] == "."] == []


def test_logs_go_only_when_asked_for(study: Experiment) -> None:
    batch = study.paths.submission(1).batch_log("100_1")
    batch.write_text("attempt 1 of study/1\n")
    log, running = (study.run(run).attempt(1).rank_log(0) for run in (1, 3))
    clean(study)
    assert log.exists()
    items = clean(study, "--logs")[0]["items"]
    assert [item["kind"] for item in items] == ["log", "log"]
    assert (log.exists(), batch.exists(), running.exists()) == (False, False, True)
    assert study.run(1).attempt(1).directory.is_dir()


def test_older_than(study: Experiment, tmp_path: Path) -> None:
    age = int((time.time() - T0) / DAY)
    assert [len(one["items"]) for one in clean(study, f"--older-than={age + 9}d")] == [0, 0, 0]
    wrong = hpcrun("clean", "study", "--older-than", "soon", root=tmp_path / "root")
    assert wrong.returncode == 2
    assert "--older-than 'soon' is neither so long ago nor a time" in wrong.stderr
    # The ends of runs 1 and 2 were recorded just now.
    assert [len(one["items"]) for one in clean(study, "--older-than=0s")] == [2, 1, 0]


def test_a_checkpoint_that_another_run_begins_with(study: Experiment, shim: Path) -> None:
    other = Experiment(study.paths.directory.parent, "tuned")
    spec = {"checkpoint": {"initialize_from": "study/1@20"}}
    other.submit((0,), job_id="200", spec=spec)
    later = Experiment(study.paths.directory.parent, "later")
    later.submit((0,), job_id="300", spec={"checkpoint": {"initialize_from": "study/2"}})
    slurm_shim(shim, squeue="".join(f"{job}|PENDING|Priority||\n" for job in (200, 300)))
    spared = clean(study, "--checkpoints=all")
    assert "step-00000020-a1 (tuned/0)" in spared[0]["spared"]
    assert "step-00000030-a1 (later/0)" in spared[1]["spared"]
    assert [steps(study, run) for run in (1, 2)] == [[20], [30]]
    # What it began with stands in origin.json, whatever it would begin with now.
    other.start(0, job_id="200")
    began = {"from": "study/1@20", "checkpoint": str(study.run(1).checkpoint(20, 1))}
    state_files.write_json(other.run(0).origin, began)
    assert clean(study, "--checkpoints=all")[0]["items"] == []
    other.end(0)
    clean(study, "--checkpoints=all")
    assert [steps(study, run) for run in (1, 2)] == [[], [30]]


def test_an_experiment_that_cannot_be_read_may_begin_with_any_checkpoint(
    study: Experiment,
) -> None:
    other = Experiment(study.paths.directory.parent, "tuned")
    other.submit((0,), job_id="200").plan.write_text("{")
    before = steps(study, 1)
    found = clean(study, "--checkpoints=all")
    assert found[0]["spared"] == "what tuned begins with is not known"
    assert before
    assert steps(study, 1) == before


def test_nothing_goes_while_slurm_is_silent(study: Experiment, shim: Path) -> None:
    """Only of run 1 it is known that it will not start again."""
    slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
    found = clean(study, "--checkpoints=all")
    assert "does not answer" in found[1]["spared"]
    assert found[2]["spared"] == "running, not over"
    assert [steps(study, run) for run in (1, 2, 3)] == [[], [10, 20, 30], [10, 20, 30]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "wants to be told which runs"),
        (("study",), "this would remove 3 items (4"),
        (("study", "--checkpoints", "some"), "'some' is not one of 'old', 'all'"),
    ],
)
def test_wrong_input(
    study: Experiment, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hpcrun("clean", *arguments, root=tmp_path / "root")
    assert done.returncode == 2
    assert message in done.stderr
    assert steps(study, 1) == [10, 20, 30]


@pytest.mark.parametrize("kind", [cleanup.CHECKPOINT, cleanup.CONVERSION])
def test_what_cannot_be_removed_as_a_whole_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The disk does not really fail: the removal stops before its first file."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(OSError, match="Input/output error"):
        cleanup.remove(ExperimentPaths(tmp_path), cleanup.Item(kind, tmp_path / "there", 0))
    assert [path.name for path in tmp_path.iterdir()] == [".trash-there"]


def test_a_run_that_is_submitted_meanwhile_keeps_all(study: Experiment, shim: Path) -> None:
    choice = cleanup.CleanupChoice(everything=True)
    found = cleanup.find(Finder(study.paths.root).resolve(["study/2"]), choice, print)
    assert len(found[0].items) == 3
    study.submit((2,), job_id="400")
    (shim / "squeue.answer").write_text("400|PENDING|Priority||N/A\n")
    assert cleanup.remove_all(found, choice, print) == []
    assert steps(study, 2) == [10, 20, 30]


def test_dry_run_changes_nothing(study: Experiment, tmp_path: Path) -> None:
    found = clean(study, "--dry-run")
    assert [len(one["items"]) for one in found] == [2, 1, 0]
    assert not any(item["removed"] for one in found for item in one["items"])
    done = hpcrun("clean", "study", "--dry-run", root=tmp_path / "root")
    assert "would remove 3 items (4" in done.stderr
    assert steps(study, 1) == [10, 20, 30]


@users.needs_root
def test_somebody_elses(tmp_path: Path, shim: Path) -> None:
    study = Experiment(tmp_path / "root")
    study.submit((1,))
    users.STRANGER.owns(study.paths.directory)
    eve = users.STRANGER.name
    for command in ("clean", "cancel", "requeue"):
        done = hpcrun(command, "study", "--yes", root=tmp_path / "root")
        assert done.returncode == 2
        assert f"study: these runs are {eve}'s, and only {eve} can {command} them" in done.stderr


def test_ctrl_c_says_what_was_done_and_leaves_no_half_checkpoint(
    study: Experiment, tmp_path: Path
) -> None:
    for index in range(3000):
        directory = study.run(1).checkpoint(10, 1) / str(index)
        directory.mkdir()
        for name in "abc":
            (directory / name).touch()
    process = start("clean", "study/1", "--yes", root=tmp_path / "root")
    while study.run(1).checkpoint(10, 1).exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: freed 0 B; the same command goes on where this one stopped" in said
    assert [path.name for path in study.run(1).checkpoints.glob(".trash-*")] == [
        ".trash-step-00000010-a1"
    ]
    clean(study)
    assert os.listdir(study.run(1).checkpoints) == ["step-00000030-a1"]  # noqa: PTH208
