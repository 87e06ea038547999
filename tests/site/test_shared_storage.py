"""Where files may lie, from a list of mounts as kernels write it; no network storage is mounted."""

from __future__ import annotations

import getpass
import os
import threading
import time
from pathlib import Path

import pytest

from hpcrun.site import shared_storage
from hpcrun.site.shared_storage import StoragePlace

ME = getpass.getuser()


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """``work`` on Lustre, ``nfs`` on NFS, all else on this machine."""
    for name in ("work", "nfs", "home"):
        (tmp_path / name).mkdir()
    path = tmp_path / "mountinfo"
    path.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"30 22 0:40 / {tmp_path}/work rw - lustre 10.0.0.1@o2ib:/w rw\n"
        f"31 22 0:41 / {tmp_path}/nfs rw - nfs4 server:/export rw\n"
        "32 22 0:42 / /usr/remote rw - nfs4 server:/usr rw\n"
    )
    return path


def _read(mounts: Path, **environ: object) -> dict[str, StoragePlace]:
    given = {name: str(value) for name, value in environ.items()}
    return {one.source: one for one in shared_storage.read(given, ME, mounts)}


def test_the_type_of_a_mount_tells_what_is_shared(mounts: Path) -> None:
    base = mounts.parent
    found = _read(mounts, WORK=base / "work", SCRATCH=base / "home", HOME=base / "nfs")
    assert [*found] == ["$WORK", "$SCRATCH", "$HOME"]
    assert (found["$WORK"].kind, found["$WORK"].is_shared) == ("lustre", True)
    assert (found["$SCRATCH"].kind, found["$SCRATCH"].is_shared) == ("ext4", False)
    assert (found["$HOME"].kind, found["$HOME"].is_shared) == ("nfs4", True)
    room = os.statvfs(base)
    assert found["$WORK"].free == pytest.approx(room.f_bavail * room.f_frsize, rel=0.1)
    assert all(one.is_usable for one in found.values())


def test_my_directory_on_a_shared_mount_is_found(mounts: Path) -> None:
    (mounts.parent / "nfs" / "users" / ME).mkdir(parents=True)
    [(source, found)] = _read(mounts).items()
    assert source == f"{mounts.parent}/nfs"
    assert found.path == f"{mounts.parent}/nfs/users/{ME}"
    assert found.is_shared


def test_what_is_named_and_cannot_be_used_is_said(mounts: Path) -> None:
    file = mounts.parent / "home" / "file"
    file.touch()
    found = _read(mounts, WORK="relative", SCRATCH=mounts.parent / "none", PSCRATCH=file)
    assert found["$WORK"].problem == "is no absolute path"
    assert found["$SCRATCH"].problem == "No such file or directory"
    assert found["$PSCRATCH"].problem == "is no directory"


def test_a_server_that_does_not_answer_is_not_waited_for(
    mounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    stuck = str(mounts.parent / "work")
    statvfs = os.statvfs

    def stat(path: str) -> os.statvfs_result:
        if path == stuck:
            release.wait(20)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", stat)
    began = time.monotonic()
    given = {"WORK": stuck, "HOME": str(mounts.parent / "nfs")}
    work, home = shared_storage.read(given, ME, mounts, patience=0.3)
    release.set()
    assert time.monotonic() - began < 5
    assert (work.problem, home.problem) == ("does not answer", "")


def test_without_a_list_of_mounts_nothing_is_shared(tmp_path: Path) -> None:
    [home] = shared_storage.read({"HOME": str(tmp_path)}, ME, tmp_path / "none")
    assert (home.kind, home.is_shared, home.is_usable) == ("", False, True)
