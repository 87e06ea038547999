"""Copies of what is written into a node's copy of the code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.work import node_work
from hpcrun.run.work.node_work import KeptFiles
from tests.support.waiting import until


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name in ("train.py", "state.json", "pkg/a.py", "data/set.csv"):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "outside").mkdir()
    (tmp_path / "code" / "linked").symlink_to(tmp_path / "outside")
    return tmp_path / "code"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "n1"


@pytest.fixture
def kept(code: Path, into: Path) -> Iterator[KeptFiles]:
    found = KeptFiles(code, into)
    yield found
    found._over.set()


def names(into: Path) -> list[str]:
    found = [path for path in into.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(str(path.relative_to(into)) for path in found)


def test_new_and_changed_files_are_kept_and_nothing_else(
    code: Path, into: Path, kept: KeptFiles
) -> None:
    (code / "pkg" / "__pycache__").mkdir()
    (code / "pkg" / "__pycache__" / "a.pyc").write_text("compiled")
    (code / "linked" / "theirs").write_text("through a link")
    (code / "pkg" / "best.pt").write_text("weights")
    (code / "pkg" / "best.pt").chmod(0o750)
    os.utime(code / "pkg" / "best.pt", (1, 1))
    (code / "latest").symlink_to(code / "pkg" / "best.pt")
    # As large as before and with the time of before, which a copy of a file may set.
    before = (code / "state.json").stat()
    (code / "state.json").write_text("STATE.JSON")
    os.utime(code / "state.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.mkfifo(code / "pipe")
    assert kept.finish() == []
    assert names(into) == ["latest", "pkg/best.pt", "state.json"]
    assert (into / "state.json").read_text() == "STATE.JSON"
    found = (into / "pkg" / "best.pt").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (0o750, 1.0)
    assert (into / "latest").readlink() == Path("pkg/best.pt")


def test_nothing_is_made_where_nothing_was_written(into: Path, kept: KeptFiles) -> None:
    assert kept.finish() == []
    assert not into.parent.exists()


def test_while_ranks_run_only_quiet_files_are_kept(code: Path, into: Path, kept: KeptFiles) -> None:
    (code / "quiet").write_text("one")
    with open(code / "busy", "w") as busy:
        for step in range(3):
            busy.write(f"{step}\n")
            busy.flush()
            kept.copy(final=False)
        assert names(into) == ["quiet"]
    (code / "quiet").unlink()
    kept.copy(final=False)
    assert names(into) == ["busy"], "what the program removed is not kept"


def test_it_looks_by_itself(code: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_work, "EVERY", 0.05)
    kept = KeptFiles(code, into)
    (code / "new").write_text("written")
    until(lambda: names(into) == ["new"])
    assert kept.finish() == []
    assert kept._thread not in threading.enumerate()


def test_a_copy_that_takes_long_does_not_put_off_the_next_for_hours(
    code: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 100 s of copying nothing was copied for three hours, in which a node may be lost."""
    monkeypatch.setattr(node_work, "EVERY", 0.05)
    as_it_is = KeptFiles._copy

    def slow(self: KeptFiles, name: str, quiet: tuple[int, int] | None) -> None:
        time.sleep(1.0)
        as_it_is(self, name, quiet)

    monkeypatch.setattr(KeptFiles, "_copy", slow)
    kept = KeptFiles(code, into)
    for name in ("first", "second"):
        (code / name).write_text(name)
        until((into / name).exists)
    kept._over.set()


def test_what_cannot_be_kept_is_told_and_the_rest_is_kept(
    code: Path, into: Path, kept: KeptFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    into.mkdir(parents=True)
    (into / "a").write_text("a file where a directory has to be")
    (code / "a").mkdir()
    (code / "a" / "lost").write_text("1")
    (code / "b").write_text("2")
    kept.copy(final=False)
    time.sleep(0.01)
    kept.copy(final=False)
    assert kept.finish() == ["a/lost: File exists"]
    assert (into / "b").read_text() == "2"
    said = capfd.readouterr()
    assert (said.out + said.err).count(
        "a/lost, written in the code's directory, cannot be kept"
    ) == 1


def test_what_the_program_removed_itself_is_not_missed(
    code: Path, into: Path, kept: KeptFiles
) -> None:
    into.mkdir(parents=True)
    (into / "a").write_text("a file where a directory has to be")
    (code / "a").mkdir()
    (code / "a" / "temporary").write_text("1")
    kept.copy(final=False)
    kept.copy(final=False)
    (code / "a" / "temporary").unlink()
    assert kept.finish() == []
