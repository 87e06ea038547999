"""What the paths of ``staging.paths`` name, and the files of each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.state import staged_sources
from hpcrun.state.staged_sources import SourceProblem, StagedSource


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "images" / "train").mkdir(parents=True)
    for name in ("a.bin", "b.bin", "images/index", "images/train/0.tar"):
        (made / name).write_text(name)
    return made


def test_paths_and_globs_have_their_last_names(data: Path) -> None:
    found = staged_sources.find([f"{data}/images", f"{data}/*.bin", f"{data}/a.bin"])
    assert [source.name for source in found] == ["images", "a.bin", "b.bin"]
    assert [file.name for file in found[0].files()] == ["index", "train/0.tar"]
    assert [(file.name, file.size) for file in found[1].files()] == [("", 5)]


def test_what_is_not_there_is_named(data: Path) -> None:
    with pytest.raises(SourceProblem, match=r"a\.bim cannot be staged: No such file"):
        staged_sources.find([f"{data}/a.bim"])
    with pytest.raises(SourceProblem, match=r"nothing matches .*/\*\.npy"):
        staged_sources.find([f"{data}/*.npy"])
    os.mkfifo(data / "pipe")
    with pytest.raises(SourceProblem, match="no file and no directory"):
        staged_sources.find([f"{data}/pipe"])


def test_two_of_one_name_are_refused(data: Path) -> None:
    (data / "images" / "a.bin").touch()
    with pytest.raises(SourceProblem, match=r"would both be \$\{hpcrun:staged\}/a\.bin"):
        staged_sources.find([f"{data}/a.bin", f"{data}/images/a.bin"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_refused(data: Path) -> None:
    (data / "a.bin").chmod(0)
    with pytest.raises(SourceProblem, match="cannot be read by you"):
        staged_sources.find([f"{data}/a.bin"])


def test_links_are_followed_and_circles_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.bin").write_text("c")
    (data / "images" / "more").symlink_to(tmp_path / "more")
    (data / "link").symlink_to(data / "images")
    source = StagedSource("link", f"{data}/link")
    assert [file.name for file in source.files()] == ["index", "more/c.bin", "train/0.tar"]
    (data / "images" / "train" / "up").symlink_to(data / "images")
    with pytest.raises(SourceProblem, match="is a link to a directory above it"):
        source.files()
    (data / "images" / "train" / "up").unlink()
    (data / "images" / "gone").symlink_to(data / "nothing")
    with pytest.raises(SourceProblem, match="link/gone cannot be read: No such file"):
        source.files()


def test_a_key_has_every_files_size_and_time(data: Path) -> None:
    source = StagedSource("images", f"{data}/images")
    keys = {staged_sources.key(source, source.files()) for _ in range(2)}
    assert len(keys) == 1
    file = data / "images" / "train" / "0.tar"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    keys.add(staged_sources.key(source, source.files()))
    (data / "images" / "new").touch()
    keys.add(staged_sources.key(source, source.files()))
    assert len(keys) == 3
