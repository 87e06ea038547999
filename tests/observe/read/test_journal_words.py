"""The last words of journals that are used again: never one that reading would not give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile
from hpcrun.observe.read import journal_words
from hpcrun.observe.read.journal_words import JournalCache, JournalWords
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files, journal
from hpcrun.state.layout import SubmissionPaths
from tests.support.experiment import HOUR, T0, Experiment, age


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Four runs in Slurm, of which one was submitted again; all of it an hour ago."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Experiment(tmp_path / "root")
    made.submit(range(4))
    made.submit((1,), job_id="200", when=T0 + 60)
    age(tmp_path / "root")
    return made


def words(root: Path) -> dict[str, JournalWords | BrokenFile]:
    return {one.name: found for one, found in Finder(root).words().items()}


def facts(root: Path) -> dict[str, object]:
    """What the words say, without their marks."""
    return {
        name: str(one) if isinstance(one, BrokenFile) else [*vars(one).values()][:-1]
        for name, one in words(root).items()
    }


def fresh(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(root / "none"))
        found = facts(root)
    shutil.rmtree(root / "none", ignore_errors=True)
    return found


def reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many journals are read."""
    count = 0
    really = journal.read

    def read(paths: SubmissionPaths) -> dict[int, journal.Job]:
        nonlocal count
        count += 1
        return really(paths)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "read", read)
        words(root)
    return count


def test_the_last_words_of_all_submissions(study: Experiment) -> None:
    """A refusal hides no earlier job, and what was deleted is not there."""
    third = study.submit((5, 6), job_id="local:77")
    journal.write_end(third, 6, 0)
    journal.write(third, journal.REFUSED, 0, [0, 7], message="no such partition")
    journal.write(third, journal.SUBMITTING, 0, [8])
    journal.write_deleted(third, [3])
    found = words(study.paths.root)["study"]
    assert isinstance(found, JournalWords)
    assert (found.submitted, found.owner) == (T0, os.geteuid())
    assert found.jobs == {"0": "100_0", "1": "200", "2": "100_2"}
    assert (found.count, found.without) == (7, [5, 8])
    assert found.others == {"100_1": [1], "100_3": [3], "local:77": [5, 6]}
    asked = {"100": [0, 1, 2, 3], "100_1": [1], "200": [1], "local:77": [5, 6], "300": []}
    assert {job: found.runs_of({job}) for job in asked} == asked


def test_what_is_as_it_was_is_not_read_again(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = study.paths.root
    first = facts(root)
    assert reads(root, monkeypatch) == 0
    assert facts(root) == first


def rewrite(path: Path, old: str, new: str) -> None:
    files.write_bytes(path, path.read_text().replace(old, new).encode())


def again_by_its_job(study: Experiment) -> None:
    """A job that cannot requeue itself submits its run again, and says so in its own journal."""
    journal.write(study.paths.submission(1), journal.SUBMITTED, 0, [2], job_id="300")


def put_another_in_its_place(study: Experiment) -> None:
    root = study.paths.root
    study.paths.directory.rename(root.parent / "aside")
    Experiment(root).submit(range(2), job_id="900")
    age(root)


def swap(study: Experiment) -> None:
    """Two experiments take each other's name."""
    root = study.paths.root
    Experiment(root, "other").submit((0,), job_id="800")
    age(root)
    words(root)
    for old, new in (("study", "third"), ("other", "study"), ("third", "other")):
        (root / old).rename(root / new)


# What happens, and whether the words are others.
CHANGES: dict[str, tuple[Callable[[Experiment], object], bool]] = {
    "a submission": (lambda study: study.submit((0,), job_id="300", when=T0 + HOUR), True),
    "a requeue by its job": (again_by_its_job, True),
    "a refusal": (
        lambda study: journal.write(
            study.paths.submission(2), journal.REFUSED, 0, [9], message="no"
        ),
        True,
    ),
    "a run deleted": (lambda study: journal.write_deleted(study.paths.submission(2), [0]), True),
    "all of it deleted": (lambda study: shutil.rmtree(study.paths.directory), True),
    "another name": (lambda study: study.paths.directory.rename(study.paths.root / "new"), True),
    "another in its place": (put_another_in_its_place, True),
    "names exchanged": (swap, True),
    "a torn journal": (
        lambda study: files.append(study.paths.submission(2).journal, {"event": 3}),
        True,
    ),
    "a journal taken away": (lambda study: study.paths.submission(2).journal.unlink(), True),
    "a submission taken away": (
        lambda study: shutil.rmtree(study.paths.submission(2).directory),
        True,
    ),
    "another time": (
        lambda study: rewrite(
            study.paths.submission(2).submission, str(T0 + 60), str(T0 + 7 * HOUR)
        ),
        True,
    ),
    "another owner": (
        lambda study: os.chown(study.paths.submission(2).directory, 4321, -1),
        True,
    ),
    "a log": (
        lambda study: study.paths.submission(1).batch_log("100_1").write_text("it began"),
        False,
    ),
    "nothing": (lambda study: None, False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_read_again(
    name: str, study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "another owner" and os.geteuid():
        pytest.skip("only root gives files away")
    root = study.paths.root
    change, differs = CHANGES[name]
    before = facts(root)
    change(study)
    after = facts(root)
    assert after == fresh(root, monkeypatch)
    assert (after != before) == differs


def wait_for_room(study: Experiment) -> None:
    journal.write(study.paths.submission(2), journal.WAITING, 0, [7], pid=1, host="elsewhere")


def take_all_away(study: Experiment) -> None:
    for path in study.paths.submissions_directory.iterdir():
        shutil.rmtree(path)


# What more than the bytes of journals may decide.
UNSETTLED: dict[str, Callable[[Experiment], object]] = {
    "changed a moment ago": lambda study: os.utime(study.paths.submission(1).journal),
    "submitted a moment ago": lambda study: os.utime(study.paths.submissions_directory),
    "a submit that waits": wait_for_room,
    "no word of when": lambda study: study.paths.submission(2).submission.unlink(),
    "a torn journal": lambda study: files.append(study.paths.submission(1).journal, {"event": 3}),
    "no submission": take_all_away,
}


@pytest.mark.parametrize("name", UNSETTLED)
def test_what_may_still_change_is_not_kept(
    name: str, study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    UNSETTLED[name](study)
    if not name.endswith("a moment ago"):
        age(study.paths.root)
    cache = JournalCache(study.paths.root)
    cache.words([study.paths])
    assert cache._used == {}


def test_another_root_has_its_own(study: Experiment, tmp_path: Path) -> None:
    """Also where it is a copy, to the second of each file."""
    words(study.paths.root)
    shutil.copytree(study.paths.root, tmp_path / "copy")
    copy = Experiment(tmp_path / "copy")
    copy.submit((3,), job_id="700")
    found = words(tmp_path / "copy")["study"]
    assert isinstance(found, JournalWords)
    assert found.jobs["3"] == "700"
    assert JournalCache(study.paths.root).path != JournalCache(tmp_path / "copy").path


@pytest.mark.parametrize(
    "how", ["torn", "empty", "a directory", "another version", "another root", "unwritable"]
)
def test_a_cache_that_does_not_fit_holds_nothing(
    how: str, study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = study.paths.root
    first = facts(root)
    path = JournalCache(root).path
    data = path.read_bytes()
    if how in ("torn", "empty"):
        path.write_bytes(data[:-9] if how == "torn" else b"")
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    elif how == "another version":
        monkeypatch.setattr(journal_words, "FORMAT", 0)
    elif how == "another root":
        path.write_bytes(data.replace(b'/root"]', b'/ruut"]'))
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert reads(root, monkeypatch) == 2
    assert facts(root) == first


def test_of_two_at_once_the_last_wins(study: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them has read of before a change does not hide the change."""
    root = study.paths.root
    early = JournalCache(root)
    early._look(study.paths)
    again_by_its_job(study)
    now = facts(root)
    early.write()
    assert facts(root) == now == fresh(root, monkeypatch)
