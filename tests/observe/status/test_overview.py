"""All that is running or queued, then the newest experiment: what is shown, read and asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcrun.host import start_ticks
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import overview
from hpcrun.observe.status.overview import Overview
from hpcrun.observe.status.slurm_cache import LastAnswers
from hpcrun.state import files, layout, permissions
from tests.support.experiment import T0, Experiment, path_with, shim_calls, slurm_shim
from tests.support.typed import Keyboard


def lines(*jobs: str) -> str:
    return "".join(f"{job}|{state}|None||N/A\n" for job, state in map(str.split, jobs))


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return slurm_shim(tmp_path / "shim", squeue=lines("200_0 RUNNING", "200_1 PENDING"))


@pytest.fixture
def root(tmp_path: Path, shim: Path) -> Path:
    """`old` is over, of `busy` two of three runs are not, and the newest, `young`, is over."""
    root = tmp_path / "root"
    for name, job, when, runs in (("old", 100, 0, 2), ("busy", 200, 1, 3), ("young", 300, 2, 1)):
        made = Experiment(root, name)
        made.submit(range(runs), job_id=str(job), when=T0 + when)
        for run in range(runs):
            if (name, run) != ("busy", 1):
                made.start(run, job_id=f"{job}_{run}" if runs > 1 else str(job))
            if name != "busy" or run == 2:
                made.end(run, outcome="failed" if name == "old" else "completed", kind="launch")
    return root


def of(root: Path, **options: bool) -> Overview:
    said: list[str] = []
    found = overview.collect(Finder(root, said.append), LastAnswers(), said.append, **options)
    assert said == []
    return found


def names(found: Overview) -> dict[str, str]:
    return {one.name: one.state for one in found.found}


def test_active_runs_then_the_newest_experiment(root: Path, shim: Path) -> None:
    found = of(root)
    assert names(found) == {"busy/0": "running", "busy/1": "pending", "young/0": "completed"}
    assert [one.name for one in found.selected] == [one.name for one in found.found]
    assert (found.runs, found.experiments) == (3, 2)
    assert [call.split()[0] for call in shim_calls(shim)] == ["squeue"]


def test_no_file_of_a_run_that_is_over_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    really = files.open_regular

    def open_regular(path: Path | str) -> tuple[int, int]:
        opened.append(str(path))
        return really(path)

    monkeypatch.setattr(files, "open_regular", open_regular)
    of(root)
    assert any("/busy/runs/0/" in path for path in opened)
    assert not [path for path in opened if "/old/runs/" in path or path.endswith("old/1/plan.json")]


def test_what_waits_without_a_job_is_shown(root: Path) -> None:
    """In a submit that waits for room, and in the local executor's queue on this machine."""
    host, here = os.uname().nodename, os.getpid()
    old = Experiment(root, "old")
    ticks = start_ticks(here)
    held = {"event": "waiting", "time": T0, "array": 0, "runs": [5], "host": host, "pid": here}
    old.submit((5,), job_id=None, when=T0)
    files.append(old.paths.submission(2).journal, {**held, "start_ticks": ticks})
    old.submit((6, 7), job_id=f"local:{here}", when=T0, host=host, start_ticks=ticks)
    files.append(
        old.paths.submission(3).journal, {"event": "ended", "time": T0, "run": 7, "exit_code": 0}
    )
    found = names(of(root))
    assert (found["old/5"], found["old/6"]) == ("waiting", "waiting")
    assert "old/7" not in found


@pytest.mark.parametrize("is_known", [False, True])
def test_a_silent_slurm_hides_nothing(root: Path, shim: Path, is_known: bool) -> None:
    """What may be at work by the disk is shown, with the last answers where there are some."""
    if is_known:
        of(root)
    slurm_shim(shim, fail="Unable to contact slurm controller")
    (shim / "calls").unlink(missing_ok=True)
    said: list[str] = []
    found = overview.collect(Finder(root), LastAnswers(), said.append)
    states = names(found)
    assert (states["busy/0"], states["busy/1"]) == ("running", "pending")
    assert "old/0" not in states
    assert all("as of" in str(one.reason) for one in found.found if one.state != "completed")
    (told,) = said
    assert "warning: Slurm does not answer" in told or "slurmctld does not answer" in told
    assert ("states as of" in told) == is_known
    assert [call.split()[0] for call in shim_calls(shim)] == ["squeue"]


def test_an_end_is_forgotten_by_what_is_remembered(root: Path, shim: Path) -> None:
    of(root)
    slurm_shim(shim)
    of(root)
    slurm_shim(shim, fail="down")
    assert LastAnswers().queued({"200_0", "200_1"}).jobs == {}


def test_what_was_shown_stays(root: Path) -> None:
    """As runs end while they are watched."""
    kept = {layout.experiment(root, "old").run(1).directory}
    found = overview.collect(Finder(root), LastAnswers(), print, kept=kept)
    assert names(found)["old/1"] == "failed"
    assert found.runs == 2


def test_a_broken_journal_is_passed_over(root: Path) -> None:
    (root / "old" / "submissions" / "1" / "journal.jsonl").write_text('{"event": 3}\n')
    said: list[str] = []
    found = overview.collect(Finder(root, said.append), LastAnswers(), print)
    assert "busy/0" in names(found)
    assert [line.startswith("passed over: ") for line in said] == [True]


@pytest.fixture
def keyboard(root: Path, capsys: pytest.CaptureFixture[str]) -> Keyboard:
    return Keyboard(root, capsys)


def rows(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_as_typed(keyboard: Keyboard) -> None:
    done = keyboard.type("status")
    assert rows(done.out) == ["busy/0", "busy/1", "young/0"]
    assert "left out: 3 runs of 2 experiments, neither running nor queued" in done.err
    assert "`hpcrun status --all` shows all" in done.err
    done = keyboard.type("status", "--json")
    assert [one["experiment"] for one in json.loads(done.out)] == ["busy", "busy", "young"]
    assert "--all" in done.err
    done = keyboard.type("status", "--all")
    assert rows(done.out) == ["busy/0", "busy/1", "busy/2", "old/0", "old/1", "young/0"]
    assert "left out" not in done.err
    assert rows(keyboard.type("status", "--all", "state=failed").out) == ["old/0", "old/1"]
    assert "left out" not in keyboard.type("status", "young").err
    done = keyboard.type("status", "--all", "old", code=2)
    assert "--all is all experiments, and old names some" in done.err


def test_nothing_is_left_out_of_one_experiment(
    tmp_path: Path, shim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Experiment(tmp_path / "root").submit()
    assert "left out" not in Keyboard(tmp_path / "root", capsys).type("status").err


def test_of_all_users(keyboard: Keyboard, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' runs are theirs: they come with --all-users, and with a pattern."""

    def owner(path: Path, real: object = permissions.owner) -> int | None:
        return 4242 if "busy" in path.parts else real(path)  # type: ignore[operator]

    monkeypatch.setattr(permissions, "owner", owner)
    assert rows(keyboard.type("status").out) == ["young/0"]
    done = keyboard.type("status", "--all-users")
    assert rows(done.out) == ["busy/0", "busy/1", "young/0"]
    assert "runs of 4242: busy" in done.err
    done = keyboard.type("status", "--all")
    assert rows(done.out) == ["old/0", "old/1", "young/0"]
    assert "left out, as they are another user's: busy" in done.err
    assert len(rows(keyboard.type("status", "--all", "--all-users").out)) == 6
    assert len(rows(keyboard.type("status", "*").out)) == 6


def test_each_experiment_shows_its_own_metric(
    tmp_path: Path, shim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    for number, metric in enumerate(["loss", "accuracy"]):
        made = Experiment(root, f"e{number}")
        made.submit(job_id=f"{number + 1}00", spec={"objective": {"metric": metric, "mode": "max"}})
        made.start(0, job_id=f"{number + 1}00")
        made.metrics(0, 1, [10], loss=0.5, accuracy=0.25)
    slurm_shim(shim, squeue=lines("100 RUNNING", "200 RUNNING"))
    keyboard = Keyboard(root, capsys)
    header, *found = keyboard.type("status").out.splitlines()
    assert "METRIC" in header.split()
    assert ["loss 0.5" in found[0], "accuracy 0.25" in found[1]] == [True, True]
    header, row = keyboard.type("status", "e1").out.splitlines()
    assert ("accuracy" in header.split(), "accuracy" in row) == (True, False)
