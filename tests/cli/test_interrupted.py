"""Ctrl-C of `hpcrun run` at several moments: one story everywhere, and nothing left running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.submit.local import processes
from tests.support import command
from tests.support.waiting import until

SAVING = """
import os, signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    time.sleep(float(os.environ["SAVE_TAKES"]))
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("works", flush=True)
is_first = os.environ["HPCRUN_ATTEMPT"] == "1" and sys.argv[-1].endswith("1")
time.sleep(300 if is_first else 0)
"""


class Foreground:
    """`hpcrun run` of a sweep of two runs; the first works until it is interrupted."""

    def __init__(self, directory: Path, takes: float) -> None:
        self.root, self.code = directory / "root", directory / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(SAVING)
        spec = {
            "name": "e",
            "entry": "train.py",
            "environment": {"python": sys.executable, "variables": {"SAVE_TAKES": str(takes)}},
            "resources": {"time": "00:10:00"},
            "recovery": {"stop_signal": "SIGUSR1"},
            "config": {"x": 0},
            "sweep": {"grid": {"config.x": [1, 2]}},
        }
        (self.code / "e.yaml").write_text(json.dumps(spec))
        self.process = subprocess.Popen(
            command.argv("run", "e.yaml", "--root", self.root),
            cwd=self.code,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def paths(self) -> ExperimentPaths:
        return experiment(self.root, "e")

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def log(self) -> str:
        path = self.paths.run(0).attempt(1).rank_log(0)
        return path.read_text() if path.exists() else ""

    def left(self) -> list[processes.LocalProcess]:
        found = self.paths.submissions()
        return [one for paths in found for one in processes.of_submission(paths.directory)]

    def hpcrun(self, *arguments: str) -> str:
        done = command.hpcrun(*arguments, "--root", self.root, cwd=self.code)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[float], Foreground]]:
    found: list[Foreground] = []

    def start(takes: float) -> Foreground:
        found.append(Foreground(tmp_path, takes))
        return found[-1]

    yield start
    for one in found:
        one.process.kill()
        one.process.communicate()
        for paths in one.paths.submissions():
            processes.kill_all(paths.directory)


def _supervised(run: Foreground) -> bool:
    return run.paths.run(0).ledger.exists()


def _works(run: Foreground) -> bool:
    return "works" in run.log()


def _saves(run: Foreground) -> bool:
    return "saving" in run.log()


def _begun(run: Foreground) -> bool:
    return bool(run.left())


# The conditions after which Ctrl-C is typed; how long a save takes; whether it comes to its end.
MOMENTS: dict[str, tuple[list[Callable[[Foreground], Any]], float, bool]] = {
    "as the supervisor starts": ([_begun], 0, False),
    "before the first rank": ([_supervised], 0, False),
    "at work": ([_works], 0.5, True),
    "again, in the save": ([_works, _saves], 300, False),
    "three times": ([_works, _saves, _saves], 300, False),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_the_end_is_cancelled_everywhere(started: Callable[[float], Foreground], name: str) -> None:
    conditions, takes, is_saved = MOMENTS[name]
    run = started(takes)
    for condition in conditions:
        until(lambda condition=condition: run.is_over or condition(run), name)  # type: ignore[misc]
        run.process.send_signal(signal.SIGINT)
    said, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 130, said
    assert "interrupted: " in said
    assert said.splitlines()[-1] == (
        "cancelled by Ctrl-C; the same command goes on, from what the run has saved"
    )
    assert run.left() == []
    assert ("saved" in run.log()) == is_saved
    first, second = json.loads(run.hpcrun("status", "e", "--json"))
    for one in (first, second):
        assert (one["state"], one["over"], one["cause"]) == ("cancelled", True, None)
    assert first["attempt"] in (None, 1)
    assert second["attempt"] is None
    told = run.hpcrun("why", "e/0")
    assert "failed" not in told
    assert "supervisor" not in told
    assert "cancelled" in told.splitlines()[0]
    if name == "at work":
        assert "Attempt 1 was cancelled" in told
        assert "cancelled: interrupted by Ctrl-C." in told
        again = json.loads(run.hpcrun("run", "e.yaml", "--json"))
        assert [one["action"] for one in again["runs"]] == ["resumed", "resumed"]
        states = json.loads(run.hpcrun("status", "e", "--json"))
        assert [one["state"] for one in states] == ["completed", "completed"]
