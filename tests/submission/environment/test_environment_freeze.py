"""What `hpcrun submit` does with an environment that is to be frozen, and what ranks see of it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.state import files, layout, ledger
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import COPY, FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission.environment import environment_freeze
from hpcrun.submission.environment.environment_files import EnvironmentFiles, FrozenFile
from hpcrun.submission.environment.environment_freeze import FilesChanged
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.made_venv import MadeVenv
from tests.support.users import STRANGER, needs_root
from tests.support.waiting import until

PROGRAM = """
import os, pathlib, subprocess, sys
import precise
print("imported", precise.VERSION, flush=True)
subprocess.run(["tool"], check=True)
venv = pathlib.Path({venv!r})
assert venv not in pathlib.Path(sys.executable).parents
assert pathlib.Path(sys.prefix) == pathlib.Path(os.environ["VIRTUAL_ENV"])
if os.environ["HPCRUN_ATTEMPT"] == "1" and "CHANGE" in os.environ:
    {change}
    sys.exit("again")
"""
# Another version in place of the one that the job was submitted with.
CHANGE = """
    (venv / {site!r} / "precise" / "__init__.py").write_text("VERSION = '1.1'")
    for record in (venv / {site!r}).glob("precise-*"):
        record.rename(record.with_name("precise-1.1.dist-info"))
"""


class Desk:
    """A directory with a spec whose environment is frozen."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.venv = MadeVenv(directory / "venv")
        self.venv.package("precise", "1.0")
        self.venv.script("tool", "import precise; print('tool', precise.VERSION)\n")
        site = str(self.venv.site.relative_to(self.venv.directory))
        change = CHANGE.format(site=site).strip()
        text = PROGRAM.format(venv=str(self.venv.directory), change=change)
        (directory / "train.py").write_text(text)

    def spec(self, name: str, environment: dict[str, Any] | None = None, **more: Any) -> None:
        own = {"python": self.venv.python, "venv": "frozen", **(environment or {})}
        data = {
            **{"name": name, "cluster": "local", "entry": "train.py", "environment": own},
            **{"resources": {"ntasks_per_node": 2}, "recovery": {"max_failures": 2}, **more},
        }
        (self.directory / f"{name}.yaml").write_text(json.dumps(data))

    def hpcrun(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HPCRUN_ROOT": str(self.root), **variables}
        return command.hpcrun(*arguments, cwd=self.directory, env=environment)

    def frozen(self) -> list[Path]:
        return sorted(frozen_environment.shared_place(self.root).glob("*"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for experiment in layout.experiments(made.root):
        for submission in experiment.submissions():
            processes.kill_all(submission.directory)


def test_a_change_between_two_starts_changes_nothing(desk: Desk) -> None:
    desk.spec("e", {"variables": {"CHANGE": "1"}})
    done = desk.hpcrun("submit", "e.yaml", "--wait")
    assert done.returncode == 0, done.stderr + desk.hpcrun("logs", "e", "--stream", "all").stdout
    assert f"environment: froze that of {desk.venv.python} in " in done.stderr
    logs = desk.hpcrun("logs", "e/0", "--attempt", "all").stdout
    assert logs.count("imported 1.0") == logs.count("tool 1.0") == 2
    assert "1.1" not in logs
    assert "packages" not in desk.hpcrun("why", "e/0").stdout
    run = layout.experiment(desk.root, "e").run(0)
    [frozen] = desk.frozen()
    for attempt in ledger.read(run):
        assert attempt.started.get("environment") == frozen.name
        assert "packages_changed" not in attempt.started
    # What it was changed to is another one, and the same content is not frozen again.
    for name, is_new in (("other", True), ("third", False)):
        desk.spec(name)
        done = desk.hpcrun("submit", f"{name}.yaml", "--wait")
        assert done.returncode == 0, done.stderr
        assert ("environment: froze" in done.stderr) is is_new, done.stderr
        assert len(desk.frozen()) == 2
    assert f"environment: that of {desk.venv.python} is frozen already (" in done.stderr
    assert "imported 1.1" in desk.hpcrun("logs", "third").stdout


def test_nothing_is_started_and_what_would_be_frozen_is_said(desk: Desk) -> None:
    desk.spec("e")
    python = desk.venv.directory / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\ntouch started\n")
    python.chmod(0o755)
    told = f"frozen: a copy of what {python} has"
    planned = desk.hpcrun("plan", "e.yaml")
    assert f"environment {told}" in planned.stdout.splitlines()
    dry = desk.hpcrun("submit", "e.yaml", "--dry-run")
    assert f"environment: would be {told}" in dry.stderr
    assert not list(desk.directory.rglob("started"))
    assert desk.frozen() == []


def test_keys_that_do_not_go_together(desk: Desk) -> None:
    desk.spec("e", {"venv": "live", "lock": "requirements.lock"})
    found = desk.hpcrun("plan", "e.yaml")
    assert found.returncode == 2
    assert "environment.lock: is given, and environment.venv is not frozen" in found.stderr
    desk.spec("e", {"lock": "requirements.lock"})
    assert "there is no file" in desk.hpcrun("plan", "e.yaml").stderr
    desk.spec("e", {}, sweep={"grid": {"environment.venv": ["live", "frozen"]}})
    assert "an experiment has one environment" in desk.hpcrun("plan", "e.yaml").stderr


def test_a_check_tells_what_submit_would_refuse(desk: Desk) -> None:
    (desk.directory / "requirements.lock").write_text("precise\n")
    desk.spec("e", {"lock": "requirements.lock"})
    found = desk.hpcrun("check", "e.yaml", "--json")
    [report] = json.loads(found.stdout)
    findings = {one["key"]: one for one in report["findings"]}
    assert "leaves the version open" in findings["environment.lock"]["message"]
    assert findings["environment.venv"]["message"].startswith("frozen: built from ")
    assert desk.hpcrun("submit", "e.yaml").returncode == 2
    assert desk.frozen() == []


def test_a_requeue_takes_the_environment_of_then(desk: Desk) -> None:
    desk.spec("e", recovery={"max_failures": 1})
    (desk.directory / "train.py").write_text("import precise; print(precise.VERSION); exit(1)")
    assert desk.hpcrun("submit", "e.yaml", "--wait").returncode == 1
    [frozen] = desk.frozen()
    desk.venv.package("precise", "2.0")
    assert desk.hpcrun("requeue", "e/0", "-y").returncode == 0
    submissions = layout.experiment(desk.root, "e").submissions()
    facts = [files.read_json(one.submission) for one in submissions]
    assert [one[frozen_environment.KEY]["digest"] for one in facts] == [frozen.name] * 2
    assert facts[1]["packages"]["precise"] == "1.0"
    frozen.rename(desk.directory / "aside")

    def is_refused() -> bool:
        """Once the run is over."""
        refused = desk.hpcrun("requeue", "e/0", "-y")
        gone = f"the frozen environment is gone: {frozen}"
        return refused.returncode != 0 and gone in refused.stderr

    until(is_refused, 60)


def test_environments_that_no_submission_has_are_removed(desk: Desk) -> None:
    desk.spec("e")
    assert desk.hpcrun("submit", "e.yaml", "--wait").returncode == 0
    [frozen] = desk.frozen()

    def age() -> None:
        for path in (frozen, frozen_environment.record(frozen)):
            os.utime(path, (1, 1))

    age()
    assert "there is nothing to remove" in desk.hpcrun("clean", "--environments").stderr
    (desk.root / "e").rename(desk.directory / "aside")
    cleaned = desk.hpcrun("clean", "--environments", "--dry-run")
    assert f"frozen environment {frozen.name[:12]}, of {desk.venv.python}" in cleaned.stderr
    os.utime(frozen_environment.record(frozen))
    assert "left alone: frozen env" in desk.hpcrun("clean", "--environments", "-y").stderr
    (desk.directory / "aside").rename(desk.root / "e")
    age()
    deleted = desk.hpcrun("delete", "e", "-y")
    assert f"removed its frozen environment {frozen.name[:12]}" in deleted.stderr, deleted.stderr
    assert desk.frozen() == []


def test_a_python_that_is_not_started_is_not_frozen(desk: Desk) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    desk.spec("e", {"python": str(desk.directory / "python")})
    (desk.directory / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (desk.directory / "python").chmod(0o755)
    os.chown(desk.directory / "python", 65534, 65534)
    refused = desk.hpcrun("submit", "e.yaml")
    assert refused.returncode == 2
    assert "cannot be frozen" in refused.stderr
    assert desk.frozen() == []


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
    first = environment_freeze.provide(experiment, DIGEST, _make, print)
    other = ExperimentPaths(experiment.root / "other")
    assert environment_freeze.provide(other, DIGEST, _never, print) == first
    assert _places(experiment) == [DIGEST]
    found = frozen_environment.find(experiment, DIGEST)
    assert found is not None
    assert {path.name for path in found.iterdir()} == {"environment.tar", "environment.json"}
    assert found.stat().st_mode & 0o777 == 0o700


def test_one_that_is_not_whole_is_made_anew(experiment: ExperimentPaths) -> None:
    environment_freeze.provide(experiment, DIGEST, _make, print)
    found = frozen_environment.find(experiment, DIGEST)
    assert found is not None
    frozen_environment.archive(found).write_bytes(b"arch")
    assert environment_freeze.existing(experiment, DIGEST) is None
    environment_freeze.provide(experiment, DIGEST, _make, print)
    assert environment_freeze.existing(experiment, DIGEST) is not None
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
        environment_freeze.provide(experiment, DIGEST, fails, print)
    assert _places(experiment) == []


def test_a_second_submit_waits_for_the_first(experiment: ExperimentPaths) -> None:
    said: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def slowly(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
        begun.set()
        assert goes_on.wait(20)
        return _make(directory, renew)

    found: list[FrozenEnvironment] = []

    def submit(make: environment_freeze.Make) -> None:
        found.append(environment_freeze.provide(experiment, DIGEST, make, said.append))

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
    old = time.time() - 2 * environment_freeze._STALE
    if owner is not None:
        (left / owner).touch()
        os.utime(left / owner, (old, old))
    os.utime(left, (old, old))
    environment_freeze.provide(experiment, DIGEST, _make, print)
    assert _places(experiment) == [DIGEST]


@needs_root
def test_another_users_is_passed_over(experiment: ExperimentPaths) -> None:
    environment_freeze.provide(experiment, DIGEST, _make, print)
    root, own = frozen_environment.places(experiment)
    for path in (root / DIGEST, *(root / DIGEST).iterdir()):
        os.chown(path, STRANGER.uid, STRANGER.gid)
    assert frozen_environment.find(experiment, DIGEST) is None
    environment_freeze.provide(experiment, DIGEST, _make, print)
    assert frozen_environment.find(experiment, DIGEST) == own / DIGEST


@needs_root
def test_an_archive_of_another_user_is_passed_over(experiment: ExperimentPaths) -> None:
    environment_freeze.provide(experiment, DIGEST, _make, print)
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
    length = environment_freeze.write(_files(source), archive, lambda: None)
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
        environment_freeze.write(listed, tmp_path / "environment.tar", lambda: None)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.py"
    source.write_text("a = 1\n")

    class Usage:
        free = 2

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(UsageError, match=r"the environment has 9 B, and .* has room for 2 B"):
        environment_freeze.write(_files(source), tmp_path / "environment.tar", lambda: None)
    assert not (tmp_path / "environment.tar").exists()
