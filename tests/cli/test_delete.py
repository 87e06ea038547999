"""``hpcrun delete`` as it is typed: what goes, what stays, and what was cut off."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from hpcrun.control import delete
from hpcrun.errors import Interrupted
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files as state_files
from hpcrun.state import journal, layout, permissions
from hpcrun.state.manifest import File, Manifest
from hpcrun.submission import lock, run_actions
from tests.support.experiment import T0, Experiment, path_with, slurm_shim
from tests.support.typed import Keyboard
from tests.support.waiting import until


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return slurm_shim(tmp_path / "shim", squeue="100_3|RUNNING|None|node1|N/A\n")


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    """Run 1 completed, run 2 failed, run 3 runs."""
    study = Experiment(tmp_path / "root")
    study.submit((1, 2, 3))
    for run in (1, 2, 3):
        study.start(run, job_id=f"100_{run}")
        study.log(run, 1, 0, "step 1\n")
        study.paths.submission(1).batch_log(f"100_{run}").write_text("batch\n")
    save(study, 1)
    study.end(1)
    study.end(2, outcome="failed", kind="rank_crash", message="x")
    return study


@pytest.fixture
def keyboard(study: Experiment, capsys: pytest.CaptureFixture[str]) -> Keyboard:
    return Keyboard(study.paths.root, capsys)


def save(study: Experiment, run: int) -> Path:
    directory = study.run(run).checkpoint(10, 1)
    directory.mkdir(parents=True)
    (directory / "weights.pt").write_bytes(b"w" * 1000)
    Manifest(10, 1, T0, 2, 2, 8, {"weights.pt": File(1000, sha256="0" * 64)}, {}).write(directory)
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def over(study: Experiment, shim: Path) -> None:
    study.end(3)
    (shim / "squeue.answer").write_text("")


def test_runs_go_with_all_that_they_have(study: Experiment, keyboard: Keyboard) -> None:
    done = keyboard.type("delete", "study", "-n")
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [
        ["study/1", "completed"],
        ["study/2", "failed"],
    ]
    assert "left alone: study/3: running, not over" in done.err
    assert "would delete 2 runs (" in done.err
    assert study.run(1).directory.is_dir()
    done = keyboard.type("delete", "study", code=2)
    assert "there is no terminal to ask on" in done.err
    assert "add --yes, or look first with --dry-run" in done.err
    found = json.loads(keyboard.type("delete", "study", "-y", "--json").out)
    assert [(one["run"], one["deleted"]) for one in found] == [(1, True), (2, True), (3, False)]
    assert found[0]["bytes"] > 1000
    assert names(study.paths.runs_directory) == ["3"]
    assert [path.name for path in study.paths.submission(1).directory.glob("*.log")] == [
        "slurm-100_3.log"
    ]
    assert [one["run"] for one in json.loads(keyboard.type("status", "--json").out)] == [3]
    assert "study has no run 1; its runs are 3" in keyboard.type("status", "study/1", code=2).err


def test_a_deleted_run_begins_anew_if_it_is_submitted(
    study: Experiment, keyboard: Keyboard
) -> None:
    assert [one.action for one in run_actions.decide(study.paths, [1])] == ["completed"]
    keyboard.type("delete", "study/1", "-y")
    [one] = run_actions.decide(study.paths, [1])
    assert (one.action, one.job) == (run_actions.NEW, None)
    study.submit((1, 2, 3), job_id="200")
    assert 1 in Finder(study.paths.root).history(study.paths).runs


def test_what_is_not_over_stays(keyboard: Keyboard, shim: Path) -> None:
    done = keyboard.type("delete", "study/3", "-y", code=2)
    assert "nothing can be deleted: study/3: running, not over" in done.err
    assert "`hpcrun cancel` ends runs" in done.err
    slurm_shim(shim, fail="Unable to contact slurm controller")
    done = keyboard.type("delete", "study/2-3", "-y", code=2)
    assert "nothing can be deleted" in done.err


def test_an_experiment_goes_as_a_whole(study: Experiment, keyboard: Keyboard, shim: Path) -> None:
    over(study, shim)
    assert "study goes as a whole" in keyboard.type("delete", "study", "-y").err
    assert [*study.paths.root.iterdir()] == []
    assert "study" in keyboard.type("delete", "study", "-y", code=2).err


def test_an_experiment_on_other_storage_goes_there_too(
    study: Experiment, keyboard: Keyboard, shim: Path, tmp_path: Path
) -> None:
    over(study, shim)
    (tmp_path / "other").mkdir()
    study.paths.directory.rename(tmp_path / "other/study")
    study.paths.directory.symlink_to(tmp_path / "other/study")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/set").write_text("kept")
    (study.run(1).directory / "data").symlink_to(tmp_path / "data")
    keyboard.type("delete", "study", "-y")
    assert [*study.paths.root.iterdir()] == []
    assert [*(tmp_path / "other").iterdir()] == []
    assert (tmp_path / "data/set").read_text() == "kept"


def test_what_others_need_stays(study: Experiment, keyboard: Keyboard, shim: Path) -> None:
    over(study, shim)
    later = Experiment(study.paths.root, "later")
    later.submit((0,), spec={"checkpoint": {"initialize_from": "study/1"}}, job_id="300")
    (shim / "squeue.answer").write_text("300|PENDING|Priority||N/A\n")
    done = keyboard.type("delete", "study/1", "-y", code=2)
    assert "study/1: later/0 begins with it, and is not over" in done.err
    (study.paths.root / "best").symlink_to(study.run(2).directory)
    done = keyboard.type("delete", "study", "-y")
    assert f"study/2: {study.paths.root / 'best'} is a link into it" in done.err
    assert names(study.paths.runs_directory) == ["1", "2"]
    (shim / "squeue.answer").write_text("")
    later.start(0, job_id="300")
    later.end(0)
    (study.paths.root / "best").unlink()
    keyboard.type("delete", "study", "-y")
    assert not study.paths.exists


def test_what_was_cut_off_is_finished(
    study: Experiment, keyboard: Keyboard, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(study, shim)
    root = study.paths.root

    def cut(paths: object) -> None:
        raise KeyboardInterrupt

    selected = Finder(root).resolve(["study/1"])
    monkeypatch.setattr(delete, "_remove", cut)
    with pytest.raises(Interrupted, match="study/1 cannot be seen any more"):
        delete.delete(delete.find(selected, print), print)
    assert sorted(Finder(root).history(study.paths).runs) == [2, 3]
    selected = Finder(root).resolve(["study"])
    with pytest.raises(Interrupted):
        delete.delete(delete.find(selected, print), print)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", path_with(shim))
    [left] = names(root)
    assert left.startswith(".deleted-study-")
    assert layout.experiments(root) == []
    assert "would remove" in keyboard.type("delete", "study", "-n").err
    done = keyboard.type("delete", "study")
    assert "removed what a deletion that was cut off had left" in done.err
    assert names(root) == []


def test_a_run_whose_directory_was_left_is_finished(study: Experiment, keyboard: Keyboard) -> None:
    """The deletion was cut off between its record and the new name."""
    journal.write_deleted(study.paths.submission(1), [1])
    assert study.run(1).directory.is_dir()
    keyboard.type("delete", "study/1", "-y")
    assert names(study.paths.runs_directory) == ["2", "3"]


def test_what_somebody_else_wrote_deletes_nothing_unasked(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = study.paths.submissions()[-1]
    journal.write_deleted(newest, [1])
    assert [path.name for path in delete.leftovers(study.paths.root, ["study"])] == ["1"]
    real = permissions.owner
    strangers = os.geteuid() + 1
    monkeypatch.setattr(
        permissions, "owner", lambda path: strangers if path == newest.journal else real(path)
    )
    assert delete.leftovers(study.paths.root, ["study"]) == []


def test_a_submit_of_the_name_waits_and_begins_anew(
    study: Experiment, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(study, shim)
    found = delete.find(Finder(study.paths.root).resolve(["study"]), print)
    waits, entered = threading.Event(), threading.Event()
    original = delete._set_aside

    def slow(*given: object) -> list[Path]:
        # The other submit has come, and waits for the lock.
        until(waits.is_set)
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(delete, "_set_aside", slow)
    deleting = threading.Thread(target=delete.delete, args=(found, print))
    deleting.start()
    until(study.paths.submit_lock.is_dir)

    def submit() -> None:
        def said(message: str) -> None:
            if "another submit of study is under way" in message:
                waits.set()

        with lock.hold(study.paths, said):
            assert study.paths.submissions() == []
            entered.set()

    submitting = threading.Thread(target=submit)
    submitting.start()
    deleting.join(60)
    submitting.join(60)
    assert entered.is_set()


def test_a_run_that_starts_meanwhile_stays(
    study: Experiment, shim: Path, keyboard: Keyboard
) -> None:
    found = delete.find(Finder(study.paths.root).resolve(["study/2"]), print)
    assert found[0].spared is None
    study.submit((2,), job_id="400")
    (shim / "squeue.answer").write_text("400|PENDING|Priority||N/A\n")
    told: list[str] = []
    assert delete.delete(found, told.append) == []
    assert "left alone: study/2: pending, not over" in told
    assert study.run(2).directory.is_dir()


def test_no_link_is_followed(study: Experiment, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("kept")
    planted = study.paths.runs_directory / ".deleted-9-00000000"
    planted.symlink_to(tmp_path / "precious")
    delete.finish(delete.leftovers(study.paths.root, ["study"]), print)
    assert not planted.is_symlink()
    assert (tmp_path / "precious/file").read_text() == "kept"
    assert state_files.read_json(study.run(1).intent)


def test_by_age(study: Experiment, keyboard: Keyboard) -> None:
    """Of what is over the end counts; of what is not, which stays, the submission years ago."""
    done = keyboard.type("delete", "study", "age<1h", "-n")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["study/1", "study/2"]
    done = keyboard.type("delete", "study", "age>30d", "-n", code=2)
    assert "nothing can be deleted: study/3: running, not over" in done.err
    done = keyboard.type("delete", "age>30d", "-n", code=2)
    assert "wants to be told which runs" in done.err
    state_files.append(study.run(2).ledger, {**END, "attempt": 1})
    done = keyboard.type("delete", "*", "state=failed,age>30d", "-y")
    assert (done.code, names(study.paths.directory / "runs")) == (0, ["1", "3"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["*", "age>9000d"], 0, "no run has age>9000d"),
        (["st*", "--where", "age>9000d", "-n"], 0, "no run has age>9000d"),
        (["*", "age>30d"], 0, "left alone: study/3: running, not over"),
        (["study", "age>9000d"], 2, "error"),
        (["*", "age>9000d", "state=failed"], 2, "error"),
        (["*", "age>9000"], 2, "has no unit"),
        (["other*", "age>9000d"], 2, "no experiment"),
    ],
)
@pytest.mark.parametrize("command", ["delete", "clean"])
def test_a_line_for_every_night_ends_well_where_nothing_is_so_old(
    study: Experiment, keyboard: Keyboard, command: str, words: list[str], code: int, told: str
) -> None:
    done = keyboard.type(command, *words, *["-y"] * ("-n" not in words), code=code)
    assert told in done.err
    assert ("there is nothing to " in done.err) == (code == 0)
    assert names(study.paths.directory / "runs") == ["1", "2", "3"]


def test_a_root_that_has_been_emptied_is_no_error_at_night(
    study: Experiment, keyboard: Keyboard
) -> None:
    shutil.rmtree(study.paths.directory)
    assert "no experiment under" in keyboard.type("delete", "*", "age>30d", "-y").err
    study.paths.root.rmdir()
    keyboard.type("delete", "*", "age>30d", "-y", code=2)


END = {"event": "attempt_ended", "time": T0 + 90, "outcome": "failed", "cause": {"kind": "launch"}}
