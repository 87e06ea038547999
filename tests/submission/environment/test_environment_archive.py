"""A frozen environment is made once, by one process, whole or not at all, and is nobody else's."""

from __future__ import annotations

import errno
import os
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import COPY, FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission.environment import environment_archive
from hpcrun.submission.environment.environment_archive import FilesChanged
from hpcrun.submission.environment.environment_files import EnvironmentFiles, FrozenFile
from tests.support.users import STRANGER, needs_root
from tests.support.waiting import until

DIGEST = "ab" * 32


@pytest.fixture
def experiment(tmp_path: Path) -> ExperimentPaths:
    return ExperimentPaths(tmp_path / "root" / "e")


def _make(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
    renew()
    frozen_environment.archive(directory).write_bytes(b"archive")
    return FrozenEnvironment(DIGEST, COPY, "/venv/bin/python", "/usr/bin/python3", "3.11.2", 7, 1)


def _never(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
    raise AssertionError("it is there already")


def _places(experiment: ExperimentPaths) -> list[str]:
    root, _ = frozen_environment.places(experiment)
    return sorted(path.name for path in root.iterdir())


def test_the_second_submit_finds_it(experiment: ExperimentPaths) -> None:
    first = environment_archive.provide(experiment, DIGEST, _make, print)
    other = ExperimentPaths(experiment.root / "other")
    assert environment_archive.provide(other, DIGEST, _never, print) == first
    assert _places(experiment) == [DIGEST]
    found = frozen_environment.find(experiment, DIGEST)
    assert found is not None
    assert {path.name for path in found.iterdir()} == {"environment.tar", "environment.json"}
    assert found.stat().st_mode & 0o777 == 0o700


def test_one_that_is_not_whole_is_made_anew(experiment: ExperimentPaths) -> None:
    environment_archive.provide(experiment, DIGEST, _make, print)
    found = frozen_environment.find(experiment, DIGEST)
    assert found is not None
    frozen_environment.archive(found).write_bytes(b"arch")
    assert environment_archive.existing(experiment, DIGEST) is None
    environment_archive.provide(experiment, DIGEST, _make, print)
    assert environment_archive.existing(experiment, DIGEST) is not None
    assert _places(experiment) == [DIGEST]


@pytest.mark.parametrize(
    ("raised", "told", "words"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(errno.ENOSPC, "No space left on device"), UsageError, "No space left on device"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), UsageError, "Disk quota exceeded"),
    ],
)
def test_an_error_leaves_nothing(
    experiment: ExperimentPaths, raised: BaseException, told: type[BaseException], words: str | None
) -> None:
    def fails(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
        frozen_environment.archive(directory).write_bytes(b"some of it")
        raise raised

    with pytest.raises(told, match=words):
        environment_archive.provide(experiment, DIGEST, fails, print)
    assert _places(experiment) == []


def test_a_second_submit_waits_for_the_first(experiment: ExperimentPaths) -> None:
    said: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def slowly(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
        begun.set()
        assert goes_on.wait(20)
        return _make(directory, renew)

    found: list[FrozenEnvironment] = []

    def submit(make: environment_archive.Make) -> None:
        found.append(environment_archive.provide(experiment, DIGEST, make, said.append))

    first = threading.Thread(target=submit, args=(slowly,))
    first.start()
    assert begun.wait(20)
    second = threading.Thread(target=submit, args=(_never,))
    second.start()
    until(lambda: bool(said), 20)
    goes_on.set()
    first.join(20)
    second.join(20)
    process = f"process {os.getpid()} on {os.uname().nodename}"
    assert said == [f"{process} freezes the same environment; waiting for it"]
    assert found[0] == found[1]
    assert _places(experiment) == [DIGEST]


@pytest.mark.parametrize("owner", [f"{os.uname().nodename}:999999999:1", "elsewhere:1:1", None])
def test_what_a_killed_submit_has_left_is_removed(
    experiment: ExperimentPaths, owner: str | None
) -> None:
    root, _ = frozen_environment.places(experiment)
    left = frozen_environment.building(root, DIGEST)
    left.mkdir(parents=True)
    frozen_environment.archive(left).write_bytes(b"some of it")
    old = time.time() - 2 * environment_archive._STALE
    if owner is not None:
        (left / owner).touch()
        os.utime(left / owner, (old, old))
    os.utime(left, (old, old))
    environment_archive.provide(experiment, DIGEST, _make, print)
    assert _places(experiment) == [DIGEST]


@needs_root
def test_another_users_is_passed_over(experiment: ExperimentPaths) -> None:
    environment_archive.provide(experiment, DIGEST, _make, print)
    root, own = frozen_environment.places(experiment)
    for path in (root / DIGEST, *(root / DIGEST).iterdir()):
        os.chown(path, STRANGER.uid, STRANGER.gid)
    assert frozen_environment.find(experiment, DIGEST) is None
    environment_archive.provide(experiment, DIGEST, _make, print)
    assert frozen_environment.find(experiment, DIGEST) == own / DIGEST


@needs_root
def test_an_archive_of_another_user_is_passed_over(experiment: ExperimentPaths) -> None:
    environment_archive.provide(experiment, DIGEST, _make, print)
    found = frozen_environment.find(experiment, DIGEST)
    assert found is not None
    os.chown(frozen_environment.archive(found), STRANGER.uid, STRANGER.gid)
    assert frozen_environment.find(experiment, DIGEST) is None


def _files(source: Path) -> EnvironmentFiles:
    found = source.stat()
    files = (
        FrozenFile("bin/python", "/usr/bin/python3", 0, 0, link="/usr/bin/python3"),
        FrozenFile("lib/a.py", str(source), found.st_size, found.st_mtime_ns),
        FrozenFile("lib/b", "", 3, 0, content=b"own"),
    )
    return EnvironmentFiles(files, DIGEST, {}, ())


def test_the_archive(tmp_path: Path) -> None:
    source, archive = tmp_path / "a.py", tmp_path / "environment.tar"
    source.write_text("a = 1\n")
    os.utime(source, (1_000_000, 1_000_000))
    length = environment_archive.write(_files(source), archive, lambda: None)
    assert length == archive.stat().st_size
    with tarfile.open(archive) as tar:
        members = {one.name: one for one in tar}
        assert members["bin/python"].linkname == "/usr/bin/python3"
        assert members["lib/a.py"].mtime == 1_000_000
        content = tar.extractfile("lib/b")
        assert content is not None
        assert content.read() == b"own"


def test_a_file_that_changed_meanwhile(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("a = 1\n")
    listed = _files(source)
    source.write_text("a = 10\n")
    with pytest.raises(FilesChanged, match=r"a\.py changed while the environment was frozen"):
        environment_archive.write(listed, tmp_path / "environment.tar", lambda: None)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.py"
    source.write_text("a = 1\n")

    class Usage:
        free = 2

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(UsageError, match=r"the environment has 9 B, and .* has room for 2 B"):
        environment_archive.write(_files(source), tmp_path / "environment.tar", lambda: None)
    assert not (tmp_path / "environment.tar").exists()
