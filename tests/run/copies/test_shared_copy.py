"""One copy for all jobs of a user on a node: who copies, who waits, and who removes it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcrun.run.copies.copied_files import CopyMeter, CopySource, CopyStopped
from hpcrun.run.copies.shared_copy import SharedCopy
from hpcrun.run.node.node_dir import sweep
from tests.support.waiting import until

HOLDER = """
import os, sys, time
from pathlib import Path
from hpcrun.run.copies import copied_files, shared_copy
source = copied_files.CopySource("tokens", sys.argv[2])
copy = shared_copy.SharedCopy(Path(sys.argv[1]), source, source.files())
meter = copied_files.CopyMeter()
def slowly(count, copied=True):
    if count:
        os.write(1, b"copies\\n")
        time.sleep(float(sys.argv[3]))
meter.add = slowly
copy.provide(meter, lambda: None, lambda: None)
print("holds", flush=True)
sys.stdin.read()
copy.release()
"""


@pytest.fixture
def source(tmp_path: Path) -> CopySource:
    made = tmp_path / "tokens"
    made.mkdir()
    for number in range(3):
        (made / f"{number}.bin").write_bytes(os.urandom(1_000))
    return CopySource("tokens", str(made))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def _copy(base: Path, source: CopySource) -> SharedCopy:
    return SharedCopy(base, source, source.files())


def _provide(copy: SharedCopy) -> str:
    return copy.provide(CopyMeter(), lambda: None, lambda: None)


def _other(base: Path, source: CopySource, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(base), source.path, str(seconds)]
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True)


def test_it_is_copied_once_and_the_last_one_removes_it(base: Path, source: CopySource) -> None:
    mine, other = _copy(base, source), _copy(base, source)
    assert [_provide(mine), _provide(other), _provide(mine)] == ["copied", "shared", "kept"]
    assert base.joinpath(next(base.iterdir())).stat().st_mode & 0o777 == 0o700
    mine.release()
    assert (other.path / "0.bin").stat().st_size == 1_000
    sweep(base)
    assert other.path.is_dir(), "it is used"
    other.release()
    assert list(base.iterdir()) == []


def test_another_version_of_the_source_has_its_own(base: Path, source: CopySource) -> None:
    before = _copy(base, source)
    _provide(before)
    Path(source.path, "0.bin").write_bytes(b"new")
    after = _copy(base, source)
    assert _provide(after) == "copied"
    assert (after.path / "0.bin").read_bytes() == b"new"
    assert (before.path / "0.bin").stat().st_size == 1_000
    before.release()
    after.release()
    assert list(base.iterdir()) == []


def test_who_comes_second_waits_for_the_first(base: Path, source: CopySource) -> None:
    first = _other(base, source, 0.3)
    assert first.stdout is not None
    assert first.stdout.readline() == "copies\n"
    told: list[str] = []
    second = _copy(base, source)
    assert second.provide(CopyMeter(), lambda: told.append("waits"), lambda: None) == "shared"
    assert told == ["waits"]
    first.communicate("")
    second.release()
    assert list(base.iterdir()) == []


def test_a_killed_copy_is_finished_by_the_next_one(base: Path, source: CopySource) -> None:
    first = _other(base, source, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "copies\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    copy = _copy(base, source)
    assert _provide(copy) == "copied"
    copy.release()
    assert list(base.iterdir()) == []


def test_a_wait_can_be_stopped(base: Path, source: CopySource) -> None:
    first = _other(base, source, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "copies\n"
    meter = CopyMeter()
    threading.Timer(0.3, meter.stop.set).start()
    with pytest.raises(CopyStopped):
        _copy(base, source).provide(meter, lambda: None, lambda: None)
    first.kill()
    first.communicate()
    sweep(base)
    assert list(base.iterdir()) == []


def test_a_copy_that_was_changed_is_mended_unless_it_is_read(
    base: Path, source: CopySource
) -> None:
    mine, other = _copy(base, source), _copy(base, source)
    _provide(mine)
    _provide(other)
    (mine.path / "1.bin").unlink()
    with pytest.raises(OSError, match="was changed, and another job reads it"):
        _provide(mine)
    assert _provide(other) == "copied"
    assert (other.path / "1.bin").read_bytes() == Path(source.path, "1.bin").read_bytes()
    other.release()
    assert list(base.iterdir()) == []


def test_a_place_that_is_not_private_is_not_used(base: Path, source: CopySource) -> None:
    copy = _copy(base, source)
    place = copy.path.parents[1]
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(OSError, match="not private to you"):
        _provide(copy)
    place.rmdir()
    place.symlink_to(base)
    with pytest.raises(OSError, match="not private to you"):
        _provide(copy)
    copy.release()
    assert place.is_symlink()


@pytest.mark.parametrize("taken", [1, 3])
def test_a_name_that_somebody_took_costs_the_name(
    base: Path, source: CopySource, taken: int
) -> None:
    usual = _copy(base, source).path.parents[1]
    for more in ("", "-1", "-2")[:taken]:
        usual.with_name(f"{usual.name}{more}").mkdir(mode=0o755)
    mine, other = _copy(base, source), _copy(base, source)
    assert _provide(mine) == "copied"
    # The last name is nobody else's to guess, nor to share.
    assert _provide(other) == ("shared" if taken == 1 else "copied")
    for copy in (mine, other):
        copy.release()
    assert len(list(base.iterdir())) == taken


def test_without_room_nothing_is_left(base: Path, source: CopySource) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    copy = _copy(base, source)
    with pytest.raises(OSError, match="No space left"):
        copy.provide(CopyMeter(), lambda: None, full)
    assert list(base.iterdir()) == []


def test_another_agent_that_holds_it_to_copy_is_waited_for(base: Path, source: CopySource) -> None:
    copy = _copy(base, source)
    copy._paths.directory.mkdir(mode=0o700)
    with open(copy._paths.lock, "w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        threading.Timer(0.5, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        assert _provide(copy) == "copied"
    copy.release()
    assert list(base.iterdir()) == []


def test_agents_that_come_and_go_at_once_agree(base: Path, source: CopySource) -> None:
    """Six threads, each with locks of its own: each finds a whole copy, and nothing is left."""
    wrong: list[object] = []

    def come_and_go() -> None:
        for _ in range(8):
            copy = _copy(base, source)
            try:
                _provide(copy)
                if sorted(one.name for one in copy.path.iterdir()) != ["0.bin", "1.bin", "2.bin"]:
                    wrong.append(copy.path)
                copy.release()
                sweep(base)
            except BaseException as error:  # a thread of a test
                wrong.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    until(lambda: list(base.iterdir()) == [], timeout=5.0)
