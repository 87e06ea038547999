"""Files of a source: copied, compared with it, and a source that changes meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpcrun.run.copies import copied_files
from hpcrun.run.copies.copied_files import (
    CopyMeter,
    CopySource,
    CopyStopped,
    SourceChanged,
    SourceProblem,
)


@pytest.fixture
def source(tmp_path: Path) -> CopySource:
    made = tmp_path / "tokens"
    (made / "deep").mkdir(parents=True)
    for number in range(6):
        (made / f"{number}.bin").write_bytes(os.urandom(3_000 * number))
    (made / "deep" / "run.sh").write_text("true")
    (made / "deep" / "run.sh").chmod(0o755)
    return CopySource("tokens", str(made))


def test_a_copy_is_equal_and_only_its_owner_reads_it(source: CopySource, tmp_path: Path) -> None:
    listed, target, meter = source.files(), tmp_path / "copy", CopyMeter()
    assert copied_files.missing(listed, target) == listed
    copied_files.copy(source, listed, target, meter)
    assert copied_files.missing(listed, target) == []
    for file in listed:
        assert (target / file.name).read_bytes() == Path(source.path, file.name).read_bytes()
    assert (target / "1.bin").stat().st_mode & 0o777 == 0o400
    assert (target / "deep" / "run.sh").stat().st_mode & 0o777 == 0o500
    assert meter.done == meter.copied == sum(file.size for file in listed)


def test_what_was_changed_or_torn_is_no_copy(source: CopySource, tmp_path: Path) -> None:
    listed, target = source.files(), tmp_path / "copy"
    copied_files.copy(source, listed, target, CopyMeter())
    (target / "2.bin").chmod(0o600)
    (target / "2.bin").write_bytes(b"torn")
    (target / "3.bin").unlink()
    os.utime(target / "4.bin", (1, 1))
    lacking = copied_files.missing(listed, target)
    assert [file.name for file in lacking] == ["2.bin", "3.bin", "4.bin"]
    copied_files.copy(source, lacking, target, CopyMeter())
    assert copied_files.missing(listed, target) == []


def test_a_source_that_changes_is_noticed(
    source: CopySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = source.files()
    changed = Path(source.path, "5.bin")
    changed.write_bytes(b"another")
    with pytest.raises(SourceChanged, match=r"5\.bin is another file"):
        copied_files.copy(source, listed, tmp_path / "a", CopyMeter())
    listed, meter = source.files(), CopyMeter()

    def grows(count: int) -> None:
        with changed.open("ab") as stream:
            stream.write(b"more")

    monkeypatch.setattr(meter, "add", grows)
    only = [file for file in listed if file.name == "5.bin"]
    with pytest.raises(SourceChanged, match=r"5\.bin changed while it was copied"):
        copied_files.copy(source, only, tmp_path / "b", meter)
    assert copied_files.missing(only, tmp_path / "b") == only


def test_a_copy_can_be_stopped(source: CopySource, tmp_path: Path) -> None:
    meter = CopyMeter()
    meter.stop.set()
    before = threading.active_count()
    with pytest.raises(CopyStopped):
        copied_files.copy(source, source.files(), tmp_path / "copy", meter)
    # Those of earlier tests may end meanwhile.
    assert threading.active_count() <= before


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "images" / "train").mkdir(parents=True)
    (made / "images" / "index").write_text("index")
    (made / "images" / "train" / "0.tar").write_text("0.tar")
    return made


def test_links_are_followed_and_circles_found(data: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.bin").write_text("c")
    (data / "images" / "more").symlink_to(tmp_path / "more")
    (data / "link").symlink_to(data / "images")
    source = CopySource("link", f"{data}/link")
    assert [file.name for file in source.files()] == ["index", "more/c.bin", "train/0.tar"]
    (data / "images" / "train" / "up").symlink_to(data / "images")
    with pytest.raises(SourceProblem, match="is a link to a directory above it"):
        source.files()
    (data / "images" / "train" / "up").unlink()
    (data / "images" / "gone").symlink_to(data / "nothing")
    with pytest.raises(SourceProblem, match="link/gone cannot be read: No such file"):
        source.files()


def test_a_key_has_every_files_size_and_time(data: Path) -> None:
    source = CopySource("images", f"{data}/images")
    keys = {copied_files.key(source, source.files()) for _ in range(2)}
    assert len(keys) == 1
    file = data / "images" / "train" / "0.tar"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    keys.add(copied_files.key(source, source.files()))
    (data / "images" / "new").touch()
    keys.add(copied_files.key(source, source.files()))
    assert len(keys) == 3
