"""The bed's shared storage caches as nfs(5) says. Each test has the sentence that it follows."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nfs import TIMES, Host
from tests.support.waiting import until


@pytest.fixture
def server(tmp_path: Path, mount: object) -> Path:
    return tmp_path / "server"


def listed(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def seconds_until(check: Callable[[], object], timeout: float = 8) -> float:
    began = time.monotonic()
    until(check, "seen", timeout, pause=0.02)
    return time.monotonic() - began


def test_attributes_of_a_file_are_believed_for_a_while(mount: Callable[..., Host]) -> None:
    """ "acregmin=n: The minimum time (in seconds) that the NFS client caches attributes of a
    regular file before it requests fresh attribute information from a server."
    """
    a, b = mount(), mount()
    (a / "file").write_text("1")
    assert (b / "file").stat().st_size == 1
    (a / "file").write_text("1234")
    assert (b / "file").stat().st_size == 1
    assert 0.1 < seconds_until(lambda: (b / "file").stat().st_size == 4) < 1.5


def test_attributes_that_stay_the_same_are_believed_longer(mount: Callable[..., Host]) -> None:
    """ "acregmax=n: The maximum time (in seconds) that the NFS client caches attributes of a
    regular file". It doubles up to that while nothing changes (fs/nfs/inode.c, nfs_update_inode).
    """
    a, b = mount(), mount()
    (a / "file").write_text("1")
    began = time.monotonic()
    while time.monotonic() - began < 3.2:
        (b / "file").stat()
        time.sleep(0.05)
    # Believed for 0.5, 1, 2 s; its name for 1, 2 s, and a lookup brings attributes, too.
    assert b.client.calls()["getattr"] + b.client.calls()["lookup"] <= 9
    (a / "file").write_text("1234")
    # Longer than the 0.5 s of a file that has just changed.
    assert seconds_until(lambda: (b / "file").stat().st_size == 4) > 0.55


def test_an_absent_name_is_believed_while_its_directory_is(mount: Callable[..., Host]) -> None:
    """ "lookupcache=all: ... both types of directory cache entries ... until their parent
    directory's cached attributes expire."
    """
    a, b = mount(), mount()
    assert not (b / "late").exists()
    (a / "late").write_text("")
    assert not (b / "late").exists()
    with pytest.raises(FileNotFoundError):
        (b / "late").open()
    assert 0.3 < seconds_until((b / "late").exists) < 2.5


def test_opening_the_directory_mends_an_absent_name(mount: Callable[..., Host]) -> None:
    """open of a directory asks for its attributes (fs/nfs/dir.c: nfs_lookup_verify_inode,
    LOOKUP_OPEN), and entries from before its change are looked up again (nfs_check_verifier).
    """
    a, b = mount(), mount()
    assert not (b / "late").exists()
    (a / "late").mkdir()
    assert listed(b.path) == ["late"]
    assert (b / "late").exists()
    (b / "late" / "inside").mkdir()


def test_opening_the_directory_brings_its_attributes(mount: Callable[..., Host]) -> None:
    """An open revalidates the inode (fs/nfs/dir.c, nfs_lookup_verify_inode), as of a file."""
    a, b = mount(), mount()
    (a / "place").mkdir()
    os.utime(a / "place", (10**9, 10**9))
    assert (b / "place").stat().st_mtime == 10**9
    (a / "place" / "lock").mkdir()
    (a / "place" / "lock").rmdir()
    assert (b / "place").stat().st_mtime == 10**9
    descriptor = os.open(b / "place", os.O_RDONLY)
    assert os.fstat(descriptor).st_mtime_ns == (a / "place").stat().st_mtime_ns
    os.close(descriptor)


def test_a_blind_client_believes_a_directory_it_opened(mount: Callable[..., Host]) -> None:
    a, b = mount(), mount(TIMES + ",blind")
    assert not (b / "late").exists()
    assert listed(b.path) == []
    (a / "late").mkdir()
    assert listed(b.path) == []
    assert not (b / "late").exists()
    assert 0.3 < seconds_until((b / "late").exists) < 4
    assert listed(b.path) == ["late"]


@pytest.mark.parametrize("options", ["lookupcache=pos", "lookupcache=none", "noac"])
def test_mount_options_turn_negative_entries_off(mount: Callable[..., Host], options: str) -> None:
    """ "lookupcache=pos: ... always revalidates negative entries before an application can use
    them." "noac: ... so that applications can more quickly detect file changes on the server".
    """
    a, b = mount(TIMES), mount(f"{TIMES},{options}")
    assert not (b / "late").exists()
    (a / "late").write_text("")
    assert (b / "late").exists()


def test_making_a_name_that_is_believed_absent_asks_the_server(mount: Callable[..., Host]) -> None:
    """mkdir and O_EXCL are calls to the server, whatever is cached (LOOKUP_CREATE, LOOKUP_EXCL)."""
    a, b = mount(), mount()
    for name in ("directory", "file"):
        assert not (b / name).exists()
    (a / "directory").mkdir()
    (a / "file").write_text("")
    with pytest.raises(FileExistsError):
        (b / "directory").mkdir()
    assert (b / "directory").exists()
    with pytest.raises(FileExistsError):
        (b / "file").open("x")


def test_open_sees_what_another_host_closed(mount: Callable[..., Host]) -> None:
    """ "When an application opens a file ..., the NFS client checks that the file exists on the
    server and is permitted to the opener by sending a GETATTR or ACCESS request."
    """
    a, b = mount(), mount()
    for text in ("1", "12", "x2", "123456", "X23456", "1", ""):
        (a / "file").write_text(text)
        assert (b / "file").read_text() == text
        assert (b / "file").stat().st_size == len(text)
        assert (a / "file").read_text() == text


def test_open_finds_a_file_that_another_host_replaced(mount: Callable[..., Host]) -> None:
    a, b = mount(), mount()
    (a / "file").write_text("old")
    assert (b / "file").read_text() == "old"
    for number in range(5):
        (a / "new").write_text(f"new{number}")
        os.replace(a / "new", a / "file")
        assert (b / "file").read_text() == f"new{number}"


def test_content_is_fresh_at_open_not_later(mount: Callable[..., Host]) -> None:
    """ "... provides no guarantee to other clients" while a file is open: sizes are believed."""
    a, b = mount(), mount()
    (a / "file").write_bytes(b"1\n")
    with (b / "file").open("rb", 0) as held:
        assert held.read() == b"1\n"
        with (a / "file").open("ab") as more:
            more.write(b"2\n")
        assert held.read() == b""
        assert (b / "file").read_bytes() == b"1\n2\n"


def test_writes_leave_at_close_fsync_or_after_a_while(
    mount: Callable[..., Host], server: Path
) -> None:
    """ "the NFS client delays sending application WRITEs to the server until any of these events
    occur: Memory pressure ..., An application flushes file data explicitly with sync(2), msync(2),
    or fsync(3), An application closes a file with close(2), ..."
    """
    a = mount()
    with (a / "file").open("wb", 0) as file:
        file.write(b"one")
        assert (server / "file").read_bytes() == b""
        assert (a / "file").read_bytes() == b"one"
        assert (a / "file").stat().st_size == 3
        os.fsync(file.fileno())
        assert (server / "file").read_bytes() == b"one"
        file.write(b"two")
        assert (server / "file").read_bytes() == b"one"
        assert 0.3 < seconds_until(lambda: (server / "file").read_bytes() == b"onetwo") < 3
        file.write(b"three")
    assert (server / "file").read_bytes() == b"onetwothree"


def test_appends_of_two_hosts_overwrite_each_other(mount: Callable[..., Host]) -> None:
    """open(2), O_APPEND: "may lead to corrupted files on NFS filesystems if more than one process
    appends data to a file at once. This is because NFS does not support appending to a file".
    """
    a, b = mount(), mount()
    (a / "file").write_bytes(b"")
    with (a / "file").open("ab", 0) as first, (b / "file").open("ab", 0) as second:
        first.write(b"aaaa")
        second.write(b"bb")
    # The second closed first; what it wrote is gone.
    assert (b / "file").read_bytes() == b"aaaa"


def test_appends_after_each_others_close_follow(mount: Callable[..., Host]) -> None:
    a, b = mount(), mount()
    for _ in range(3):
        for host, data in ((a, b"a"), (b, b"b")):
            descriptor = os.open(host / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, data)
            os.close(descriptor)
    assert (a / "file").read_bytes() == b"ababab"


def test_an_open_file_that_is_removed_here_is_renamed(
    mount: Callable[..., Host], server: Path
) -> None:
    """Silly rename (fs/nfs/unlink.c): the file is there as .nfs… until its last close."""
    a = mount()
    (a / "directory").mkdir()
    (a / "directory" / "file").write_text("kept")
    with (a / "directory" / "file").open() as held:
        (a / "directory" / "file").unlink()
        assert [name[:4] for name in listed(a / "directory")] == [".nfs"]
        assert held.read() == "kept"
        with pytest.raises(OSError, match="not empty"):
            (a / "directory").rmdir()
    until(lambda: not listed(server / "directory"), "removed", 2)
    (a / "directory").rmdir()


def test_an_open_file_that_is_removed_elsewhere_is_stale(mount: Callable[..., Host]) -> None:
    """ESTALE: "Stale file handle": the server has no such file any more."""
    a, b = mount(), mount()
    (a / "file").write_bytes(b"x" * 10000)
    with (b / "file").open("rb", 0) as held:
        held.read(1)
        (a / "file").unlink()
        time.sleep(1.1)
        with pytest.raises(OSError, match="Stale"):
            os.fstat(held.fileno())
    with pytest.raises(FileNotFoundError):
        (b / "file").open()


def test_a_host_that_loses_power_loses_what_it_did_not_send(
    mount: Callable[..., Host], server: Path
) -> None:
    a = mount()
    script = f"f = open({str(a / 'file')!r}, 'wb', 0); f.write(b'x'); print('written'); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writer = subprocess.Popen(["python3", "-uc", script], **pipes)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    client = next(
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if str(a.path).encode() in (path / "cmdline").read_bytes().split(b"\0")
    )
    os.kill(client, 9)
    writer.communicate()
    assert (server / "file").read_bytes() == b""


def test_locks_are_each_hosts_own(mount: Callable[..., Host]) -> None:
    """ "local_lock=all: the client assumes that both flock and POSIX locks are local." """
    import fcntl

    a, b = mount(), mount()
    with (a / "lock").open("w") as first, (b / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (a / "lock").open("w") as third, pytest.raises(BlockingIOError):
            fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_root_is_nobody(mount: Callable[..., Host], server: Path) -> None:
    """exports(5), root_squash: "Map requests from uid/gid 0 to the anonymous uid/gid." """
    a = mount()
    (a / "mine").write_text("")
    assert (server / "mine").stat().st_uid == 65534
    (server / "closed").mkdir(mode=0o700)
    os.chown(server / "closed", 4711, 4711)
    with pytest.raises(PermissionError):
        (a / "closed" / "file").write_text("")
    with pytest.raises(PermissionError):
        listed(a / "closed")


def test_a_server_that_is_silent_blocks_until_it_answers(mount: Callable[..., Host]) -> None:
    """ "hard: ... NFS requests are retried indefinitely." """
    a = mount()
    a.client.silence(True)
    asked = threading.Thread(target=lambda: (a / "name").exists(), daemon=True)
    asked.start()
    asked.join(0.5)
    assert asked.is_alive()
    a.client.silence(False)
    asked.join(2)
    assert not asked.is_alive()


def test_calls_take_their_time_and_are_counted(mount: Callable[..., Host]) -> None:
    a = mount()
    a.client.delay(0.05)
    before, began = a.client.calls(), time.monotonic()
    (a / "name").exists()
    assert time.monotonic() - began > 0.05
    assert a.client.calls()["lookup"] - before["lookup"] == 1
    (a / "name").exists()
    assert a.client.calls()["lookup"] - before["lookup"] == 1


def test_a_full_server_is_told_at_close_or_fsync(nfs_program: Path, tmp_path: Path) -> None:
    """ "... any write errors are returned at close": the data had been taken before."""
    export, path = tmp_path / "export", tmp_path / "mounted"
    export.mkdir(), path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", export], check=True)
    try:
        argv = [nfs_program, export, path, tmp_path / "control", TIMES]
        subprocess.run(list(map(str, argv)), check=True)
        descriptor = os.open(path / "file", os.O_WRONLY | os.O_CREAT)
        assert os.write(descriptor, b"x" * 100_000) == 100_000
        with pytest.raises(OSError, match="No space left"):
            os.close(descriptor)
        subprocess.run(["umount", "--lazy", path], check=True)
    finally:
        subprocess.run(["umount", "--lazy", export], check=True)
