"""``hpcrun rename`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.state import ledger
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.support.typed import Keyboard
from tests.support.waiting import until


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return slurm_shim(tmp_path / "shim")


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    study = Experiment(tmp_path / "root")
    study.submit((0, 1), job_id="100")
    for run in (0, 1):
        study.start(run, job_id=f"100_{run}")
        study.end(run)
    return study


@pytest.fixture
def keyboard(study: Experiment, capsys: pytest.CaptureFixture[str]) -> Keyboard:
    return Keyboard(study.paths.root, capsys)


def test_all_is_there_under_the_new_name(study: Experiment, keyboard: Keyboard) -> None:
    keyboard.type("tag", "study/1", "+good")
    assert keyboard.type("rename", "study", "other", "-n").out == "would rename study to other\n"
    assert study.paths.exists
    done = keyboard.type("rename", "study", "other")
    assert done.out == "renamed study to other\n"
    assert "write `name: other` into /home/someone/study.yaml" in done.err
    assert [path.name for path in study.paths.root.iterdir()] == ["other"]
    found = json.loads(keyboard.type("status", "other", "--json").out)
    assert [(one["run"], one["state"], one["tags"]) for one in found] == [
        (0, "completed", []),
        (1, "completed", ["good"]),
    ]
    # No lock is left behind: it can be renamed back.
    assert keyboard.type("rename", "other", "study").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nothing", "other"), "there is no experiment 'nothing' under"),
        (("study", "../other"), "found '../other'; accepted are letters, digits"),
        (("study", "3"), "found '3'; accepted are"),
        (("study", "there"), "is there already"),
        (("study", "study"), "has that name already"),
        (("study/0", "other"), "there is no experiment 'study/0'"),
    ],
)
def test_mistakes(study: Experiment, keyboard: Keyboard, words: tuple[str, str], told: str) -> None:
    Experiment(study.paths.root, "there").submit()
    assert told in keyboard.type("rename", *words, code=2).err
    assert study.paths.exists


def test_not_while_a_run_is_under_way(study: Experiment, keyboard: Keyboard, shim: Path) -> None:
    study.submit((2,), job_id="200")
    (shim / "squeue.answer").write_text("200|PENDING|Priority||N/A\n")
    done = keyboard.type("rename", "study", "other", code=2)
    assert "study/2 (pending, not over)" in done.err
    assert "hpcrun cancel study" in done.err
    assert study.paths.exists


def test_not_while_others_need_its_name(study: Experiment, keyboard: Keyboard, shim: Path) -> None:
    link = study.paths.root / "best"
    link.symlink_to(study.run(1).directory)
    assert f"1: {link} is a link into it" in keyboard.type("rename", "study", "new", code=2).err
    link.unlink()
    later = Experiment(study.paths.root, "later")
    later.submit((0,), spec={"checkpoint": {"initialize_from": "study/1@10"}}, job_id="300")
    later.start(0, job_id="300")
    later.end(0)
    done = keyboard.type("rename", "study", "new")
    assert "later named study (depends_on or checkpoint.initialize_from): write new" in done.err


def test_a_run_goes_on_under_the_new_name(tmp_path: Path) -> None:
    """A real one, on this machine: what it wrote is there, and so is its second attempt."""
    root, spec = tmp_path / "root", tmp_path / "first.yaml"
    program = 'echo "$HPCRUN_RUN" >> here; test -e go || exit 3; cat here'
    text = {
        **{"name": "first", "cluster": "local", "entry": ["bash", "-c", program]},
        "recovery": {"requeue": False},
    }
    spec.write_text(json.dumps(text))
    done = hpcrun("submit", spec, "--wait", root=root)
    assert done.returncode == 1, done.stderr
    assert hpcrun("rename", "first", "second", root=root).returncode == 0
    (root / "second/runs/0/work/go").touch()
    done = hpcrun("requeue", "second", "-y", root=root)
    assert done.returncode == 0, done.stderr
    [run] = Finder(root).resolve(["second"])
    until(lambda: ledger.intent(run.paths) == ledger.FINISHED)
    assert not (root / "first").exists()
    assert [path.number for path in run.paths.attempts()] == [1, 2]
    assert len((run.paths.work / "here").read_text().splitlines()) == 2
