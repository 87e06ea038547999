"""Whether the owner of a lock is gone, by the storage's clock where it is on another host."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcrun import owner_lock, shared_look
from tests.support.nfs import Host

HERE = os.uname().nodename


def test_here_its_process_tells(tmp_path: Path) -> None:
    watch = owner_lock.OwnerWatch(tmp_path, 0.0)
    assert not watch.is_left(owner_lock.myself(), tmp_path / "none")
    assert watch.is_left(f"{HERE}:{os.getpid()}:1", tmp_path / "none")
    assert owner_lock.parts("no owner") == ("no owner", "", "")


def test_elsewhere_its_silence_tells_whatever_this_hosts_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    watch = owner_lock.OwnerWatch(tmp_path, 90)
    assert not watch.is_left("elsewhere:1:1", lock)
    os.utime(lock, (clock() - 200,) * 2)
    assert watch.is_left("elsewhere:1:1", lock)
    assert 199 < watch.silence(lock) < 250
    lock.unlink()
    with pytest.raises(FileNotFoundError):
        watch.is_left("elsewhere:1:1", lock)
    assert [*tmp_path.iterdir()] == []


def test_where_nothing_can_be_made_silence_counts_from_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(directory: Path) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_look, "storage_time", full)
    os.utime(tmp_path, (1, 1))
    assert owner_lock.OwnerWatch(tmp_path, 90).silence(tmp_path) < 5


def test_a_lock_that_another_host_renews(two_hosts: tuple[Host, Host]) -> None:
    """What this host remembers of its time is older than the file."""
    other, here = two_hosts
    (other / "lock").touch()
    os.utime(other / "lock", (1, 1))
    assert (here / "lock").stat().st_mtime == 1
    os.utime(other / "lock")
    assert (here / "lock").stat().st_mtime == 1
    assert not owner_lock.OwnerWatch(here.path, 90).is_left("elsewhere:1:1", here / "lock")
