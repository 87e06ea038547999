"""Samples of tar files by number, as WebDataset lays them out."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.data.tar_shards import TarShards

pytest.importorskip("numpy")
LONG = "d/" + "x" * 150


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _shard(path: Path, *names: str, mode: str = "w") -> Path:
    """Write a shard whose files have their own names as their content."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data := name.encode())
            tar.addfile(info, io.BytesIO(data))
    return path


def test_samples_are_found_by_number(tmp_path: Path, cache: Path) -> None:
    # What has no extension is of no sample; a name's first dot ends the key.
    _shard(tmp_path / "a-0.tar", "README", "1.jpg", "1.json", "d.e/2.jpg", "d.e/2.seg.png")
    _shard(tmp_path / "a-1.tar", f"{LONG}.txt", "1.txt")
    for again in (False, True):
        shards = TarShards(tmp_path / "a-*.tar")
        assert len(shards) == 4
        assert shards[0] == {"__key__": "1", "jpg": b"1.jpg", "json": b"1.json"}
        assert shards[1] == {
            "__key__": "d.e/2",
            "jpg": b"d.e/2.jpg",
            "seg.png": b"d.e/2.seg.png",
        }
        assert pickle.loads(pickle.dumps(shards))[2] == {  # noqa: S301
            "__key__": LONG,
            "txt": f"{LONG}.txt".encode(),
        }
        assert shards[3]["txt"] == b"1.txt"
        with pytest.raises(IndexError, match="sample 4 of 4"):
            shards[4]
        kept = [*cache.rglob("*.npy")]
        assert len(kept) == 2
        # A torn file of the cache is made anew; a whole one is used, whatever is in the shard.
        if not again:
            kept[0].write_bytes(kept[0].read_bytes()[:-3])
    times = (tmp_path / "a-1.tar").stat()
    (tmp_path / "a-1.tar").write_bytes(b"\0" * times.st_size)
    os.utime(tmp_path / "a-1.tar", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(TarShards(tmp_path / "a-1.tar")) == 2


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file")
    assert len(TarShards(_shard(tmp_path / "a.tar", "1.txt"))) == 1
    said = capfd.readouterr()
    assert "cannot be kept in" in said.out + said.err


def _cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    def shard(name: str) -> Path:
        return _shard(tmp_path / name, "1.txt", "2.txt")

    cases: dict[Any, str] = {
        tmp_path / "no-*.tar": "there is no file",
        tmp_path: "cannot be read as an uncompressed tar",
        _shard(tmp_path / "a.tar.gz", "1.txt", mode="w:gz"): "cannot be read as an uncompressed",
        _shard(tmp_path / "b.tar", "README"): "has no sample",
        _shard(tmp_path / "c.tar"): "has no sample",
        _cut(shard("d.tar"), 1024): "is cut off",
        _cut(shard("e.tar"), 1540): "unexpected end of data|is cut off",
        _cut(shard("f.tar"), 2048): "is cut off",
    }
    for path, problem in cases.items():
        with pytest.raises(UsageError, match=problem):
            pytest.fail(f"{path}: {len(TarShards(path))}")
    shards = TarShards(shard("g.tar"))
    _cut(tmp_path / "g.tar", 600)
    with pytest.raises(UsageError, match="has changed since"):
        shards[1]
