"""``hpcrun cancel`` as it is typed; Slurm is a shim here, the local processes are real."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.host import start_ticks
from hpcrun.state import files, ledger
from hpcrun.submission.local import processes
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, shim_calls, slurm_shim

QUEUE = "100_2|RUNNING|None|node1|N/A\n100_3|PENDING|Priority||N/A\n"


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return slurm_shim(tmp_path / "shim", squeue=QUEUE)


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    """Run 1 completed, run 2 runs, run 3 waits."""
    study = Experiment(tmp_path / "root")
    study.submit((1, 2, 3))
    study.start(1, job_id="100_1")
    study.end(1)
    study.start(2, job_id="100_2")
    return study


def intents(study: Experiment) -> list[str | None]:
    return [ledger.intent(study.run(number)) for number in (1, 2, 3)]


def scancels(shim: Path) -> list[str]:
    return [call for call in shim_calls(shim) if call.startswith("scancel")]


def test_cancels_what_lives_and_leaves_the_rest(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    done = hpcrun("cancel", "study", "--yes", root=tmp_path / "root")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "study/1: already completed (job 100_1)",
        "study/2: cancelled (job 100_2)",
        "study/3: cancelled (job 100_3)",
    ]
    assert intents(study) == ["finished", "cancelled", "cancelled"]
    assert scancels(shim) == ["scancel 100_2 100_3"]


def test_again_does_no_harm(study: Experiment, shim: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert hpcrun("cancel", "study", "--yes", root=tmp_path / "root").returncode == 0
    slurm_shim(shim)
    done = hpcrun("cancel", "study", "--json", root=tmp_path / "root")
    assert [one["action"] for one in json.loads(done.stdout)] == ["left"] * 3
    assert intents(study) == ["finished", "cancelled", "cancelled"]


def test_an_older_job_that_somebody_requeued_is_ended_too(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    """The run was submitted again, and the job of before runs an attempt."""
    study.submit((2,), job_id="200")
    study.end(2, outcome="failed")
    study.start(2, 2, job_id="100_2", submission=1)
    done = hpcrun("cancel", "study/2", root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert scancels(shim) == ["scancel 100_2"]


@pytest.mark.parametrize("is_packed", [True, False])
def test_an_older_job_that_is_not_the_runs_own_is_not_ended_whole(
    study: Experiment, shim: Path, tmp_path: Path, is_packed: bool
) -> None:
    """Other runs share it, or it is an allocation of the user's, for which no submit asked."""
    if is_packed:
        study.submit((2, 3), job_id="100_2", packed=True)
    else:
        used = study.submit((2,), job_id=None)
        record = {"event": "submitted", "time": T0, "array": 0, "runs": [2], "job_id": "100_2"}
        files.append(used.journal, record)
    study.submit((2,), job_id="200")
    study.end(2, outcome="failed")
    study.start(2, 2, job_id="100_2", submission=2)
    assert hpcrun("cancel", "study/2", root=tmp_path / "root").returncode == 0
    assert not any("100_2" in call for call in scancels(shim))


def test_dry_run_changes_nothing(study: Experiment, shim: Path, tmp_path: Path) -> None:
    done = hpcrun("cancel", "study", "--dry-run", "--json", root=tmp_path / "root")
    actions = [one["action"] for one in json.loads(done.stdout)]
    assert actions == ["left", "would cancel", "would cancel"]
    assert intents(study) == ["finished", None, None]
    assert scancels(shim) == []


def test_one_run_needs_no_yes(study: Experiment, shim: Path, tmp_path: Path) -> None:
    assert hpcrun("cancel", "study/3", root=tmp_path / "root").returncode == 0
    assert scancels(shim) == ["scancel 100_3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "wants to be told which runs"),
        (("study",), "this would cancel 2 runs: study/2-3; there is no terminal to ask on"),
        (("study/9",), "study has no run 9"),
        (("--where", "lr=1"), "wants to be told which runs"),
    ],
)
def test_wrong_input(
    study: Experiment, shim: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hpcrun("cancel", *arguments, root=tmp_path / "root")
    assert done.returncode == 2
    assert message in done.stderr
    assert intents(study) == ["finished", None, None]
    assert scancels(shim) == []


def test_the_intent_stands_when_slurm_does_not_answer(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
    for _ in range(2):
        done = hpcrun("cancel", "study/2", root=tmp_path / "root")
        assert done.returncode == 4
        assert "marked as cancelled, and Slurm could not be told" in done.stderr
    assert intents(study) == ["finished", "cancelled", None]
    # Whose job the number is now is not known.
    assert scancels(shim) == []


def test_slurm_refuses(study: Experiment, shim: Path, tmp_path: Path) -> None:
    (shim / "scancel").write_text(
        "#!/bin/sh\necho 'scancel: error: Kill job error on job id 100_2: Access/permission denied'"
        " >&2; exit 1\n"
    )
    done = hpcrun("cancel", "study/2", root=tmp_path / "root")
    assert done.returncode == 3
    assert "permission denied" in done.stderr


def test_a_planned_run_stays_cancelled(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit((1,), job_id=None)
    assert hpcrun("cancel", "study/1", root=tmp_path).returncode == 0
    assert ledger.intent(study.run(1)) == "cancelled"


def test_local_processes_end(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    paths = study.submit((1, 2), job_id=None)
    variables = {processes.SUBMISSION: str(paths.directory), processes.RUN: "1"}
    child = subprocess.Popen(["sleep", "100"], env={**os.environ, **variables})
    try:
        from hpcrun.state import journal

        job_id = f"local:{child.pid}"
        journal.write(
            paths, "submitted", 0, [1, 2], job_id=job_id,
            host=os.uname().nodename, start_ticks=start_ticks(child.pid),
        )  # fmt: skip
        study.start(1, job_id=job_id)
        done = hpcrun("cancel", "study", "--yes", root=tmp_path)
        assert done.returncode == 0, done.stderr
        assert child.wait(10) != 0
        assert ledger.intent(study.run(2)) == "cancelled"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("spelling", ["link", "real/../link/../real", "link/study"])
def test_local_processes_end_however_the_root_is_spelled(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "link").symlink_to("real")
    study = Experiment(tmp_path / "real")
    paths = study.submit((1,), job_id=None)
    variables = {processes.SUBMISSION: str(paths.directory), processes.RUN: "1"}
    child = subprocess.Popen(["sleep", "100"], env={**os.environ, **variables})
    try:
        from hpcrun.state import journal

        job_id = f"local:{child.pid}"
        journal.write(
            paths, "submitted", 0, [1], job_id=job_id,
            host=os.uname().nodename, start_ticks=start_ticks(child.pid),
        )  # fmt: skip
        study.start(1, job_id=job_id)
        where = tmp_path / spelling if spelling.endswith("study") else "study"
        done = hpcrun("cancel", str(where), root=tmp_path / spelling.removesuffix("/study"))
        assert done.returncode == 0, done.stderr
        assert child.wait(10) != 0
    finally:
        child.kill()
        child.wait()


def test_local_processes_of_another_machine(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit((1,), job_id="local:1", host="elsewhere", start_ticks=1)
    study.start(1, job_id="local:1")
    done = hpcrun("cancel", "study/1", root=tmp_path)
    assert done.returncode == 4
    assert "study/1 on elsewhere" in done.stderr
    assert ledger.intent(study.run(1)) == "cancelled"


def test_an_allocation_of_the_users_is_left_alone(shim: Path, tmp_path: Path) -> None:
    from hpcrun.state import journal

    study = Experiment(tmp_path / "root")
    paths = study.submit((2,), job_id=None)
    journal.write(paths, "submitted", 0, [2], job_id="100_2")
    study.start(2, job_id="100_2", nodes=(os.uname().nodename,))
    done = hpcrun("cancel", "study/2", root=tmp_path / "root")
    assert done.returncode == 0
    assert ledger.intent(study.run(2)) == "cancelled"
    assert scancels(shim) == []
