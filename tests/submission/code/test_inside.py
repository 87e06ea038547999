"""Files that are opened below a directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpcrun.submission.code.inside import Inside, LeftOut, open_inside


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


def test_files_beside_each_other_share_one_way_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/b/one", "a/b/two", "a/three"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    opened: list[object] = []
    plain = os.open

    def counted(path: object, *arguments: object, **options: object) -> int:
        opened.append(path)
        return plain(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", counted)
    before = len([*Path("/proc/self/fd").iterdir()])
    with Inside(tmp_path) as inside:
        for name in ("a/b/one", "a/b/two", "a/three", "a/b/one"):
            with open(inside.open(name)[0]) as stream:
                assert stream.read() == name
        with pytest.raises(FileNotFoundError):
            inside.open("a/c/one")
        with open(inside.open("a/b/two")[0]) as stream:
            assert stream.read() == "a/b/two"
    assert opened.count("two") == 2
    assert opened[:8] == [tmp_path, "a", "b", "one", "two", tmp_path, "a", "three"]
    assert len([*Path("/proc/self/fd").iterdir()]) == before
