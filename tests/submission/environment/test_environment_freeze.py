"""What `hpcrun submit` does with an environment that is to be frozen, and what ranks see of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files, layout, ledger
from hpcrun.state.environment import frozen_environment
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.made_venv import MadeVenv
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
