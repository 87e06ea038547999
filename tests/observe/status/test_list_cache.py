"""Rows of `hpcrun list` that are used again: never one that reading would not give."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.cli import list as list_command
from hpcrun.observe.read import root_cache
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import list_cache
from hpcrun.state import annotation_log, files, journal, layout, ledger, permissions
from hpcrun.submission import lock
from tests.support.experiment import HOUR, T0, Experiment, age, path_with, slurm_shim
from tests.support.nfs import Host


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Runs that completed, failed, and were cancelled before and after they began; an hour ago."""
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made_at(tmp_path / "root")


def made_at(root: Path) -> Experiment:
    made = Experiment(root)
    made.submit(range(4))
    for run in range(3):
        made.start(run, job_id=f"100_{run}", when=T0 + 60)
        made.metrics(run, 1, [1, 2], loss=1.0 - run / 4)
    made.end(0)
    made.end(1, outcome="failed", kind="exit", message="boom")
    ledger.write(made.run(1), ledger.DECIDED, 1, action="stop", reason="of no use")
    ledger.set_intent(made.run(2), ledger.CANCELLED)
    made.end(2, outcome="cancelled", kind="cancelled", message="by you")
    ledger.set_intent(made.run(3), ledger.CANCELLED)
    age(root)
    return made


def listed(study: Experiment) -> list[dict[str, Any]]:
    said: list[str] = []
    found = list_command._experiments(Finder(study.paths.root, said.append), said.append)
    return json.loads(json.dumps(found))


def fresh(study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is read where there is no cache."""
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
        shutil.rmtree(tmp_path / "none", ignore_errors=True)
        return listed(study)


def is_kept(study: Experiment) -> bool:
    return list_cache.ListCache(study.paths.root).find(study.paths) is not None


def test_a_settled_experiment_is_not_read_again(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = listed(study)
    assert first[0]["states"] == {"cancelled": 2, "completed": 1, "failed": 1}
    assert first[0]["best"]["value"] == 0.5
    # Whatever the time is then.
    clock = time.time() + 9 * HOUR
    monkeypatch.setattr(time, "time", lambda: clock)
    for module, name in ((ledger, "read"), (journal, "read")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it was read"))
    assert listed(study) == first


def go_on(study: Experiment) -> None:
    """What follows on `scontrol requeue`, of which no submission tells."""
    study.start(1, 2, job_id="100_1")


def complete(study: Experiment) -> None:
    go_on(study)
    study.end(1, 2)


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def locked(study: Experiment, change: Callable[[], object] = lambda: None) -> None:
    """What a command does that holds the submit lock."""
    with lock.hold(study.paths, lambda message: None):
        change()


def resubmit(study: Experiment) -> None:
    locked(study, lambda: study.submit((1,), job_id="300", when=T0 + HOUR))


def take_back(study: Experiment) -> None:
    """What `requeue` does of a run that was cancelled."""
    locked(study, lambda: ledger.set_intent(study.run(3), None))


def delete(study: Experiment) -> None:
    def change() -> None:
        journal.write_deleted(study.paths.submission(1), [1, 3])
        study.run(1).directory.rename(study.paths.runs_directory / ".deleted-1-0123abcd")

    locked(study, change)


def tag(study: Experiment, name: str = "good") -> None:
    annotation_log.append(study.paths, None, add=[name])


def give_away(study: Experiment) -> None:
    for path in (study.paths.directory, *study.paths.directory.rglob("*")):
        os.chown(path, 4321, -1)


def put_another_in_its_place(study: Experiment) -> None:
    root = study.paths.root
    study.paths.directory.rename(root.parent / "aside")
    Experiment(root).submit(range(2), job_id="900")
    age(root)


def swap(study: Experiment) -> None:
    """Two experiments take each other's name."""
    root = study.paths.root
    other = Experiment(root, "other")
    other.submit((0,), job_id="800")
    ledger.set_intent(other.run(0), ledger.CANCELLED)
    age(other.paths.directory)
    listed(study)
    for old, new in (("study", "third"), ("other", "study"), ("third", "other")):
        (root / old).rename(root / new)


def write_line(study: Experiment, event: str, **said: Any) -> None:
    journal.write(study.paths.submission(1), event, 0, [7], **said)


Changes = dict[str, tuple[Callable[[Experiment], object], bool]]
# What happens by hpcrun and Slurm, and whether the row is another.
CHANGES: Changes = {
    "a requeue by hand": (go_on, True),
    "its end": (complete, True),
    "a submission": (resubmit, True),
    "a tag": (tag, True),
    "a deletion": (delete, True),
    "cancelled": (lambda study: ledger.set_intent(study.run(1), ledger.CANCELLED), True),
    "no longer cancelled": (take_back, True),
    "a clean": (locked, False),
    "another in its place": (put_another_in_its_place, True),
    "names exchanged": (swap, True),
}
# What happens beside it.
BY_HAND: Changes = {
    "a refusal": (lambda study: write_line(study, journal.REFUSED, message="no"), False),
    "an update": (
        lambda study: write_line(study, journal.UPDATED, changes={"time": "01:00:00"}),
        False,
    ),
    "another owner": (give_away, True),
    "a run taken away": (lambda study: shutil.rmtree(study.run(0).directory), True),
    "a ledger taken away": (lambda study: study.run(1).ledger.unlink(), True),
    "all runs taken away": (lambda study: shutil.rmtree(study.paths.runs_directory), True),
    "a submission taken away": (
        lambda study: shutil.rmtree(study.paths.submission(1).directory),
        True,
    ),
}


@pytest.mark.parametrize("name", [*CHANGES, *BY_HAND])
def test_what_changed_is_read_again(
    name: str, study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "another owner" and os.geteuid():
        pytest.skip("only root gives files away")
    change, differs = {**CHANGES, **BY_HAND}[name]
    before = listed(study)
    assert is_kept(study)
    change(study)
    assert not is_kept(study)
    after = listed(study)
    assert after == fresh(study, tmp_path, monkeypatch)
    assert (after != before) == differs


@pytest.mark.parametrize("name", CHANGES)
def test_what_another_host_changed_is_read_again(
    name: str,
    study: Experiment,
    two_hosts: tuple[Host, Host],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This one believes attributes that it has seen for as long as this test takes."""
    there, here = two_hosts
    # Root's rights end at the server.
    monkeypatch.setattr(permissions, "check_mine", lambda *_: None)
    theirs, ours = made_at(there / "root"), Experiment(here / "root")
    listed(ours)
    assert is_kept(ours)
    assert is_kept(ours)
    CHANGES[name][0](theirs)
    if name == "names exchanged":
        # It listed them on its way.
        shutil.rmtree(tmp_path / "cache")
    assert [one.name for one in layout.entries(here / "root")][-1:] == ["study"]
    assert not is_kept(ours)
    assert named(listed(ours)) == named(fresh(theirs, tmp_path, monkeypatch))


def named(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without where this host sees them."""
    return [{**row, "directory": None} for row in rows]


@pytest.mark.parametrize("files_of", ["a new one's", "its own"])
def test_a_further_tag(
    files_of: str, study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag(study)
    age(study.paths.root)
    listed(study)
    assert is_kept(study)
    with monkeypatch.context() as patched:
        if files_of != "its own":
            patched.setattr(os, "geteuid", lambda: 4321)
        tag(study, "better")
    assert listed(study)[0]["tags"] == ["better", "good"]


def test_tags_of_which_only_the_directory_was_made(study: Experiment) -> None:
    study.paths.annotations.mkdir()
    age(study.paths.root)
    listed(study)
    assert is_kept(study)
    tag(study)
    assert listed(study)[0]["tags"] == ["good"]


def test_what_is_final_is_not_looked_at(study: Experiment) -> None:
    before = listed(study)
    study.paths.submission(1).plan.write_text("torn")
    study.run(0).ledger.unlink()
    assert listed(study) == before


def test_calls_of_what_is_over(study: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that completed or were cancelled: one open, and a look at two names."""
    locked(study, lambda: journal.write_deleted(study.paths.submission(1), [1]))
    age(study.paths.root)
    listed(study)
    found = []
    with monkeypatch.context() as patched:
        for name in ("open", "stat", "lstat", "listdir", "scandir"):
            really = getattr(os, name)

            def look(path: Any, *options: Any, _really: Any = really, **more: Any) -> Any:
                if str(path).startswith(str(study.paths.directory)):
                    found.append((_really.__name__, os.path.relpath(path, study.paths.directory)))
                return _really(path, *options, **more)

            patched.setattr(os, name, look)
        listed(study)
    assert found == [("open", "."), ("stat", "runs"), ("stat", "submissions/1/journal.jsonl")]


def test_another_root_has_rows_of_its_own(study: Experiment, tmp_path: Path) -> None:
    """Also one that was moved, and one that has taken its place."""
    listed(study)
    study.paths.root.rename(tmp_path / "moved")
    Experiment(tmp_path / "root").submit((0,), job_id="700")
    assert listed(study)[0]["states"] == {"unknown": 1}
    moved = Experiment(tmp_path / "moved")
    assert not is_kept(moved)
    tag(moved)
    assert listed(moved)[0]["directory"] == str(moved.paths.directory)
    assert listed(moved)[0]["tags"] == ["good"]


def test_nothing_is_kept_under_a_submit(study: Experiment) -> None:
    """Which may have begun long ago, and is about to change more than its lock."""
    with lock.hold(study.paths, lambda message: None):
        age(study.paths.root)
        listed(study)
        assert not is_kept(study)
    age(study.paths.root)
    listed(study)
    assert is_kept(study)


def test_a_failed_run_that_waits_again(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put back into the queue by hand, and no file tells."""
    listed(study)
    (tmp_path / "shim" / "squeue.answer").write_text("100_1|PENDING|Priority||N/A\n")
    waits = listed(study)
    assert waits[0]["states"]["requeued"] == 1
    assert waits == fresh(study, tmp_path, monkeypatch)
    (tmp_path / "shim" / "squeue.answer").write_text("")
    assert "requeued" not in listed(study)[0]["states"]


@pytest.mark.parametrize(
    "tear",
    [
        lambda data: data[:-9],
        lambda data: b"",
        lambda data: data.replace(b'"completed":1', b'"completed":7'),
        lambda data: b"{" * 3_000,
        lambda data: data.partition(b"\n")[2],
        lambda data: root_cache.digest(b'{"of":1}') + b'\n{"of":1}',
        lambda data: root_cache.digest(b"[]") + b"\n[]",
    ],
)
def test_a_torn_cache_holds_nothing(
    tear: Callable[[bytes], bytes], study: Experiment, tmp_path: Path
) -> None:
    before = listed(study)
    (path,) = (tmp_path / "cache" / "hpcrun").glob("list-*.json")
    path.write_bytes(tear(path.read_bytes()))
    assert not is_kept(study)
    assert listed(study) == before
    assert is_kept(study)


@pytest.mark.parametrize(("what", "value"), [("FORMAT", 0), ("version", "0")])
def test_a_cache_of_another_hpcrun_holds_nothing(
    what: str, value: object, study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(study)
    place = (list_cache, "FORMAT") if what == "FORMAT" else (root_cache.hpcrun, "__version__")
    monkeypatch.setattr(*place, value)
    assert not is_kept(study)


def test_another_experiment_of_that_name_has_no_row(study: Experiment) -> None:
    listed(study)
    shutil.move(study.paths.directory, study.paths.root.parent / "aside")
    other = Experiment(study.paths.root)
    other.submit(range(4))
    age(study.paths.root)
    assert listed(study)[0]["states"] == {"unknown": 4}
    shutil.rmtree(study.paths.directory)
    assert listed(study) == []


def end_by_signal(study: Experiment) -> None:
    study.start(3, job_id="100_3")
    study.end(3, outcome="failed", kind="signal", message="SIGTERM")


def end_to_go_on(study: Experiment) -> None:
    end_by_signal(study)
    ledger.write(study.run(3), ledger.DECIDED, 1, action="requeue", reason="again")


def end_without_time(study: Experiment) -> None:
    study.start(3, job_id="100_3")
    files.append(study.run(3).ledger, {"event": ledger.ENDED, "attempt": 1, "outcome": "completed"})


# What is not settled: Slurm, the clock or the next second may have more to say.
UNSETTLED: dict[str, Callable[[Experiment], object]] = {
    "never began": lambda study: None,
    "running": lambda study: study.start(3, job_id="100_3"),
    "ended by a signal": end_by_signal,
    "about to be requeued": end_to_go_on,
    "an end without its time": end_without_time,
    "a warning": lambda study: files.append(study.paths.submission(1).journal, {"runs": "x"}),
}


@pytest.mark.parametrize("name", UNSETTLED)
def test_what_may_still_change_is_not_kept(name: str, study: Experiment) -> None:
    ledger.set_intent(study.run(3), None)
    UNSETTLED[name](study)
    age(study.paths.root)
    listed(study)
    assert not is_kept(study)


@pytest.mark.parametrize("what", ["directory", "journal", "ledger of 1", "intent of 3"])
def test_what_changed_a_moment_ago_is_not_kept(what: str, study: Experiment) -> None:
    """A second change may leave the same size and time of a file."""
    path = {
        "directory": study.paths.directory,
        "journal": study.paths.submission(1).journal,
        "ledger of 1": study.run(1).ledger,
        # It may begin at the same moment.
        "intent of 3": study.run(3).intent,
    }[what]
    os.utime(path)
    listed(study)
    assert not is_kept(study)


def test_a_cache_that_cannot_be_written_is_none(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert listed(study) == listed(study) != []
