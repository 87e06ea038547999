"""One submit of an experiment at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.host import start_ticks
from hpcrun.state.layout import experiment
from hpcrun.submission import lock, preflight

PROGRAM = """
import sys, time
from pathlib import Path
from hpcrun.submission import lock as submit_lock
from hpcrun.state.layout import experiment
log = Path(sys.argv[2])
for _ in range(20):
    with submit_lock.hold(experiment(Path(sys.argv[1]), "e"), print):
        with log.open("a") as stream: stream.write("in\\n")
        time.sleep(0.005)
        with log.open("a") as stream: stream.write("out\\n")
"""


def test_nothing_is_left(tmp_path: Path) -> None:
    paths = experiment(tmp_path / "a" / "root", "e")
    with lock.hold(paths, print):
        owners = [path.name.split(":")[1] for path in paths.submit_lock.iterdir()]
        assert owners == [str(os.getpid())]
    assert list(tmp_path.iterdir()) == []
    paths.code.mkdir(parents=True)
    with lock.hold(paths, print):
        pass
    assert list(paths.directory.iterdir()) == [paths.code]


def test_a_lock_that_is_about_to_appear_is_nobodys_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another first submit looks into the directory before the lock has its name."""
    paths, rename = experiment(tmp_path, "e"), Path.rename
    seen: list[list[Path]] = []

    def looked_at(draft: Path, target: Path) -> Path:
        seen.append([*paths.directory.iterdir()])
        preflight.check_directory(paths)
        return rename(draft, target)

    monkeypatch.setattr(Path, "rename", looked_at)
    with lock.hold(paths, print):
        assert [len(names) for names in seen] == [1]


def test_one_after_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "root"), str(log)]
    started = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert log.read_text() == "in\nout\n" * 80
    assert not (tmp_path / "root" / "e").exists()


def test_who_is_waited_for(tmp_path: Path) -> None:
    paths, said = experiment(tmp_path, "e"), []
    other = subprocess.Popen(["sleep", "1.5"])
    host, ticks = os.uname().nodename, start_ticks(other.pid)
    paths.submit_lock.mkdir(parents=True)
    (paths.submit_lock / f"{host}:{other.pid}:{ticks}").touch()
    with lock.hold(paths, said.append):
        assert start_ticks(other.pid) is None
    other.wait()
    assert said == [
        f"another submit of e is under way (process {other.pid} on {host}); waiting for it"
    ]


@pytest.mark.parametrize(("host", "told"), [(os.uname().nodename, 0), ("elsewhere", 1)])
def test_a_lock_whose_owner_is_gone_is_taken_over(tmp_path: Path, host: str, told: int) -> None:
    paths, said = experiment(tmp_path, "e"), []
    paths.submit_lock.mkdir(parents=True)
    left = paths.submit_lock / f"{host}:{os.getpid()}:1"
    left.touch()
    os.utime(left, (time.time() - 660,) * 2)
    with lock.hold(paths, said.append):
        assert not left.exists()
    assert [line.split(";")[0] for line in said] == [
        f"a submit of e on elsewhere (process {os.getpid()}) began 11 minutes ago and was not "
        "seen to end"
    ] * told


def test_a_root_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    with (
        pytest.raises(UsageError, match="cannot be written"),
        lock.hold(experiment(tmp_path, "e"), print),
    ):
        pass
