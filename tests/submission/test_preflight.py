"""Checks before submission: what would fail in the queue is refused before it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import ClusterRefused, UsageError
from hpcrun.state import files, ledger
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.manifest import File, Manifest
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.submission import preflight
from hpcrun.submission.submission_dir import unwritable
from tests.support.slurm_shim import Shim


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_root_is_a_directory_or_can_become_one(tmp_path: Path, below: str) -> None:
    preflight.check_root(tmp_path / below, {"executor": "local"}, print)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: cannot be written: Not a directory"):
        preflight.check_root(tmp_path / "file" / below, {"executor": "local"}, print)


def test_what_cannot_be_read_is_no_fault_of_the_root(tmp_path: Path) -> None:
    """Such as a file of the code that goes while it is copied."""
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/elsewhere/train.py")
    found = unwritable(tmp_path / "root", error)
    assert found.message.startswith("/elsewhere/train.py, of which the jobs get a copy: No such")
    assert "submit again" in str(found)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/elsewhere/cache")
    assert "/elsewhere/cache: cannot be written: No space" in str(unwritable(tmp_path, full))


def test_a_directory_of_somebodys_becomes_no_experiment(tmp_path: Path) -> None:
    """A checkout of hpcrun in the place of the default root, and an experiment named docs."""
    docs = experiment(tmp_path, "docs")
    preflight.check_directory(docs)
    for own in (docs.code, docs.submit_lock, docs.runs_directory, docs.directory / ".hpcrun"):
        own.mkdir(parents=True)
    preflight.check_directory(docs)
    (docs.directory / "cli.md").touch()
    with pytest.raises(UsageError, match=r"docs is there already .* it holds cli\.md, ") as raised:
        preflight.check_directory(docs)
    assert "--root DIR" in str(raised.value)
    docs.submissions_directory.mkdir()
    preflight.check_directory(docs)


def run_of(number: int, nodes: int) -> RunPlan:
    resources = {"nodes": nodes, "ntasks_per_node": 2, "gpus_per_node": 0}
    return RunPlan(number, "", "", {}, Entry("command", argv=("true",)), {"resources": resources})


@pytest.fixture
def saved_by_four(tmp_path: Path) -> ExperimentPaths:
    """Run 3 was saved by 4 ranks, run 4 too, which cannot be divided; run 5 never."""
    paths = ExperimentPaths(tmp_path)
    for number, fixed in ((3, None), (4, "the model is a pipeline")):
        directory = paths.run(number).checkpoint(7, 1)
        directory.mkdir(parents=True)
        Manifest(7, 1, 0.0, 4, 1, 8, {"model.pt": File(1, "")}, fixed_size=fixed).write(directory)
    return paths


def test_the_same_number_of_ranks_is_no_news(saved_by_four: ExperimentPaths) -> None:
    preflight.check_world_sizes(
        [run_of(number, 2) for number in (3, 4, 5)], saved_by_four, pytest.fail
    )


def test_what_is_converted_is_told(saved_by_four: ExperimentPaths) -> None:
    said: list[str] = []
    preflight.check_world_sizes([run_of(3, 1), run_of(5, 1)], saved_by_four, said.append)
    assert said == [
        "checkpoints that are converted for other ranks as the jobs start: run 3, 4 to 2 ranks"
    ]


def test_ranks_that_torchrun_started_inside_are_no_other_number(
    saved_by_four: ExperimentPaths,
) -> None:
    ledger.write(saved_by_four.run(4), ledger.STARTED, 1, world_size=2)
    preflight.check_world_sizes([run_of(4, 1)], saved_by_four, pytest.fail)
    with pytest.raises(UsageError, match="run 4, 4 to 8 ranks: the model is a pipeline"):
        preflight.check_world_sizes([run_of(4, 2)], saved_by_four, pytest.fail)


def test_what_cannot_be_converted_is_refused(saved_by_four: ExperimentPaths) -> None:
    with pytest.raises(UsageError) as caught:
        preflight.check_world_sizes([run_of(3, 1), run_of(4, 4)], saved_by_four, pytest.fail)
    assert "run 4, 4 to 8 ranks: the model is a pipeline" in str(caught.value)
    assert (
        "hint: ask for the ranks, and the parallel, of before; or start afresh with --new"
        in str(caught.value)
    )


@pytest.mark.parametrize(("saved", "now"), [(2, 4), (2, 1), (1, 2)])
def test_experts_are_not_divided_anew(tmp_path: Path, saved: int, now: int) -> None:
    paths = ExperimentPaths(tmp_path)
    directory = paths.run(3).checkpoint(7, 1)
    directory.mkdir(parents=True)
    parallel = {"expert": saved} if saved > 1 else {}
    Manifest(7, 1, 0.0, 4, 1, 8, {"model.pt": File(1, "")}, parallel=parallel).write(directory)
    run = run_of(3, 2)
    spec = {**run.spec, "parallel": {"expert": now}}
    with pytest.raises(UsageError, match="DeepSpeed converts no experts to another layout"):
        preflight.check_world_sizes([replace(run, spec=spec)], paths, pytest.fail)
    spec["parallel"]["expert"] = saved
    preflight.check_world_sizes([replace(run, spec=spec)], paths, pytest.fail)


def test_what_fully_shard_saved_goes_on_at_any_tensor(tmp_path: Path) -> None:
    paths, said, run = ExperimentPaths(tmp_path), [], run_of(3, 2)
    directory = paths.run(3).checkpoint(7, 1)
    directory.mkdir(parents=True)
    files = {"__0_0.distcp": File(1, "")}
    Manifest(7, 1, 0.0, 4, 0, 8, files, parallel={"tensor": 2}).write(directory)
    for axes in ({}, {"tensor": 4}):
        plan = replace(run, spec={**run.spec, "parallel": axes})
        preflight.check_world_sizes([plan], paths, said.append)
    assert len(said) == 2
    plan = replace(run, spec={**run.spec, "parallel": {"pipeline": 2}})
    with pytest.raises(UsageError, match="fully_shard knows tensor and data alone"):
        preflight.check_world_sizes([plan], paths, pytest.fail)


def _limited(time: str, stop_before: str | None = None) -> RunPlan:
    spec: dict[str, Any] = {"resources": {"time": time}, "recovery": {"stop_before": stop_before}}
    return RunPlan(3, "identity", "", {}, Entry("command", argv=("true",)), spec)


@pytest.fixture
def slowly_saved(tmp_path: Path) -> ExperimentPaths:
    """Run 3 once took 100 s to save."""
    paths = ExperimentPaths(tmp_path)
    attempt = paths.run(3).attempt(1)
    attempt.directory.mkdir(parents=True)
    files.append(attempt.session, {"event": "saved", "step": 5, "seconds": 100.0})
    return paths


def test_too_short(slowly_saved: ExperimentPaths) -> None:
    with pytest.raises(UsageError) as caught:
        preflight.check_time_limits([_limited("00:05:00")], slowly_saved)
    assert "of that run 3 needs 220 s to stop: a save took up to 100 s" in caught.value.message
    assert "7 minutes or more" in str(caught.value.hint)


def test_long_enough_or_chosen_or_never_measured(
    slowly_saved: ExperimentPaths, tmp_path: Path
) -> None:
    preflight.check_time_limits(
        [_limited("00:08:00"), _limited("00:05:00", "00:01:00")], slowly_saved
    )
    preflight.check_time_limits([_limited("00:01:00")], ExperimentPaths(tmp_path / "other"))


@pytest.mark.parametrize("name", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
def test_a_shell_that_sends_jobs_to_another_cluster(
    shim: Shim, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """hpcrun's commands leave the variable out: the job would be where nobody looks for it."""
    shim.answer("sbatch", {})
    shim.answer("scontrol", {"out": "ClusterName = alps\n"})
    preflight.check_executor({"executor": "slurm"})
    assert shim.calls == []
    monkeypatch.setenv(name, "alps")
    preflight.check_executor({"executor": "slurm"})
    monkeypatch.setenv(name, "andes")
    preflight.check_executor({"executor": "local"})
    with pytest.raises(
        ClusterRefused, match=f"{name} is andes in this shell, .* alone, alps"
    ) as no:
        preflight.check_executor({"executor": "slurm"})
    assert f"`unset {name}`" in str(no.value.hint)
