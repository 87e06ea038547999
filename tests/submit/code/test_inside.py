"""Files that are opened below a directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpcrun.submit.code.inside import LeftOut, open_inside


def test_a_file_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("x")
    descriptor, found = open_inside(tmp_path, "a/b")
    with open(descriptor) as stream:
        assert (stream.read(), found.st_size) == ("x", 1)
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path, "a/c")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../outside", "not below the root"),
        ("/etc/passwd", "not below the root"),
        ("a/./b", "not below the root"),
        ("link", "a symbolic link"),
        ("way/passwd", "reached through a symbolic link"),
        ("file/b", "reached through a symbolic link"),
        ("fifo", "not a regular file"),
        ("socket", "not a regular file"),
        ("directory", "not a regular file"),
    ],
)
def test_what_is_no_file_below_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "way").symlink_to("/etc")
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        before = len([*Path("/proc/self/fd").iterdir()])
        with pytest.raises(LeftOut, match=why):
            open_inside(tmp_path, name)
        assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_link_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    look = os.stat

    def then_exchanged(*arguments: object, **options: object) -> os.stat_result:
        found = look(*arguments, **options)  # type: ignore[arg-type]
        (tmp_path / "file").unlink(missing_ok=True)
        (tmp_path / "file").symlink_to("/etc/passwd")
        return found

    monkeypatch.setattr(os, "stat", then_exchanged)
    with pytest.raises(LeftOut, match="not a regular file"):
        open_inside(tmp_path, "file")
