"""A node's copy of a frozen environment: unpacked once, shared, and not from what was changed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.copies.copied_files import CopyMeter
from hpcrun.run.copies.environment_copy import EnvironmentCopy
from hpcrun.run.copies.node_copies import DataCopies
from hpcrun.state.environment.environment_names import PYTHON
from hpcrun.state.environment.frozen_environment import COPY, FrozenEnvironment
from tests.support.users import STRANGER, needs_root
from tests.support.waiting import until

DIGEST = "1a" * 32


class Tar:
    """An archive that is written member by member."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        self.add("lib/a.py", b"a = 1\n")
        link = tarfile.TarInfo(PYTHON)
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        self._tar.addfile(link)
        self.add("bin/tool", b"#!/bin/sh\n", 0o700)

    def add(self, name: str, content: bytes, mode: int = 0o600) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = len(content), mode, 1_000_000
        self._tar.addfile(info, io.BytesIO(content))

    def closed(self) -> FrozenEnvironment:
        self._tar.close()
        length = self.path.stat().st_size
        packages = {"torch": "2.13.0", "deepspeed": "0.19.8"}
        return FrozenEnvironment(DIGEST, COPY, "p", "b", "3.11.2", length, 3, {}, packages)


@pytest.fixture
def tar(tmp_path: Path) -> Tar:
    return Tar(tmp_path / "environment.tar")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def _provide(copy: EnvironmentCopy, meter: CopyMeter | None = None) -> str:
    return copy.provide(meter or CopyMeter(), lambda: None, lambda: None)


def test_it_is_unpacked_once_and_shared(tar: Tar, base: Path) -> None:
    found = tar.closed()
    one, two = (EnvironmentCopy(base, found, tar.path) for _ in range(2))
    meter = CopyMeter()
    assert one.bytes_missing() == found.bytes
    assert [_provide(one, meter), _provide(two), _provide(one, meter)] == [
        "copied",
        "shared",
        "kept",
    ]
    assert (meter.done, meter.copied) == (2 * found.bytes, found.bytes)
    assert one.path == two.path
    assert os.readlink(one.python) == "/usr/bin/python3"  # noqa: PTH115
    tool, module = ((one.path / name).stat() for name in ("bin/tool", "lib/a.py"))
    assert [stat.S_IMODE(each.st_mode) for each in (tool, module)] == [0o500, 0o400]
    assert module.st_mtime == 1_000_000
    one.release()
    assert (two.path / "lib/a.py").exists()
    two.release()
    assert list(base.iterdir()) == []


def test_it_lies_in_the_same_place_whenever_the_archive_was_copied(tar: Tar, base: Path) -> None:
    found = tar.closed()
    before = EnvironmentCopy(base, found, tar.path)
    os.utime(tar.path, (7, 7))
    after = EnvironmentCopy(base, found, tar.path)
    assert before.path == after.path
    assert after.installation == (DIGEST, str(after.path))
    assert after.trains


@pytest.mark.parametrize("name", ["../a.py", "/a.py", "lib/../../a.py"])
def test_a_name_that_leads_elsewhere(tar: Tar, base: Path, name: str) -> None:
    tar.add(name, b"")
    copy = EnvironmentCopy(base, tar.closed(), tar.path)
    with pytest.raises(HpcrunError, match="would be written elsewhere"):
        _provide(copy)
    assert list(base.iterdir()) == []


def test_one_that_was_cut(tar: Tar, base: Path) -> None:
    tar.add("lib/large", b"x" * 100_000)
    found = tar.closed()
    with open(tar.path, "r+b") as stream:
        stream.truncate(50_000)
    with pytest.raises(HpcrunError, match="is not what was frozen"):
        _provide(EnvironmentCopy(base, found, tar.path))
    with open(tar.path, "r+b") as stream:
        stream.truncate(found.bytes)
    with open(tar.path, "r+b") as stream:
        stream.write(b"\1" * 512)
    with pytest.raises(HpcrunError, match="cannot be unpacked"):
        _provide(EnvironmentCopy(base, found, tar.path))
    assert list(base.iterdir()) == []


@needs_root
def test_another_users_archive(tar: Tar, base: Path) -> None:
    found = tar.closed()
    os.chown(tar.path, STRANGER.uid, STRANGER.gid)
    with pytest.raises(HpcrunError, match="is not what was frozen"):
        _provide(EnvironmentCopy(base, found, tar.path))


def _staged(base: Path, copy: EnvironmentCopy) -> dict[str, object]:
    staging, told = DataCopies(base, [], copy), []
    staging.begin()

    def is_over() -> bool:
        staging.turn(told.append)
        return any(one["type"] != "copying" for one in told)

    until(is_over)
    staging.close()
    return told[-1]


def test_a_node_says_that_it_has_it(tar: Tar, base: Path) -> None:
    found = tar.closed()
    told = _staged(base, EnvironmentCopy(base, found, tar.path))
    assert told["type"] == "copied"
    report = told["report"]
    assert isinstance(report, dict)
    assert (report["files"], report["bytes"], report["copied"]) == (3, found.bytes, found.bytes)


def test_a_node_without_room_for_it_has_no_ranks(
    tar: Tar, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        total, free = 10_000, 1

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    told = _staged(base, EnvironmentCopy(base, tar.closed(), tar.path))
    assert told["type"] == "failed"
    message = str(told["message"])
    assert message.startswith(f"the frozen environment cannot be unpacked in {base}: it has ")
    assert message.endswith("TMPDIR names another place")


@pytest.mark.parametrize("sent", ["whole", "half", "other"])
def test_what_was_sent_to_the_node_is_read_if_it_is_whole(
    tar: Tar, base: Path, capfd: pytest.CaptureFixture[str], sent: str
) -> None:
    found, near = tar.closed(), base.parent / "sent.tar"
    content = tar.path.read_bytes()
    near.write_bytes(content if sent == "whole" else content[: found.bytes // 2])
    if sent == "whole":
        tar.path.unlink()
    elif sent == "other":
        near.write_bytes(b"\1" * found.bytes)
    told = _staged(base, EnvironmentCopy(base, found, tar.path, near))
    assert told["type"] == "copied", told
    report = told["report"]
    assert isinstance(report, dict)
    assert (report["bytes"], report["copied"]) == (found.bytes, found.bytes)
    assert not near.exists()
    assert ("is read from shared storage" in capfd.readouterr().out) == (sent != "whole")


def test_room_is_made_for_it_by_what_was_sent(
    tar: Tar, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, near = tar.closed(), base.parent / "sent.tar"
    near.write_bytes(tar.path.read_bytes())

    class Usage:
        total = 10_000

        @property
        def free(self) -> int:
            return 1 if near.exists() else 2 * found.bytes

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    copy = EnvironmentCopy(base, found, tar.path, near)
    assert DataCopies(base, [], copy).room() == (found.bytes, 0)
    assert _staged(base, copy)["type"] == "copied"
    assert not near.exists()
