"""What is there is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.tools.init.starter.file_plan import PlannedFile


def test_what_becomes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    PlannedFile.of(path, "one", force=False).write()
    assert path.read_text() == "one"
    same = PlannedFile.of(path, "one", force=True)
    assert (same.action, same.there) == ("unchanged", "one")
    kept = PlannedFile.of(path, "two", force=False)
    kept.write()
    assert (kept.action, path.read_text()) == ("kept", "one")
    replaced = PlannedFile.of(path, "two", force=True)
    replaced.write()
    assert (replaced.action, path.read_text()) == ("replaced", "two")
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    planned = PlannedFile.of(path, "ours", force=False)
    path.write_text("theirs")
    with pytest.raises(FileExistsError, match="meanwhile"):
        planned.write()
    assert path.read_text() == "theirs"


def test_a_link_is_kept_and_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    assert PlannedFile.of(link, "text", force=False).action == "kept"
    PlannedFile.of(link, "text", force=True).write()
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="a FIFO"):
        PlannedFile.of(tmp_path / "fifo", "", force=False)
