"""Ctrl-C, a closed terminal and signals: one story everywhere, and nothing that is left running."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.submission.local import processes
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

    def __init__(self, directory: Path, takes: float, words: Sequence[str] = ("run",)) -> None:
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
        self.process = self._start(words)

    def _start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command.argv(words[0], "e.yaml", *words[1:], "--root", self.root),
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


class OnTerminal(Foreground):
    """The same on a terminal, which `close` closes."""

    def _start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        self._master, terminal = pty.openpty()
        try:
            return subprocess.Popen(
                command.argv(words[0], "e.yaml", *words[1:], "--root", self.root),
                cwd=self.code,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(terminal)

    def close(self) -> None:
        os.close(self._master)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Foreground]]:
    found: list[Foreground] = []

    def start(takes: float, kind: type[Foreground] = Foreground, *words: str) -> Foreground:
        found.append(kind(tmp_path, takes, words or ("run",)))
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
    # Without a wait for the rank, it may have been there first.
    is_saved |= not takes and "works" in run.log()
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


def _is_cancelled_by(run: Foreground, words: str) -> None:
    """Check that all readers say what interrupted the first run, and that both are cancelled."""
    assert run.left() == []
    first, second = json.loads(run.hpcrun("status", "e", "--json"))
    assert [one["state"] for one in (first, second)] == ["cancelled", "cancelled"]
    assert (first["attempt"], second["attempt"]) == (1, None)
    told = run.hpcrun("why", "e/0")
    assert f"cancelled: interrupted by {words}." in told
    assert "requeue" not in told.partition("Next")[0]
    assert "failed" not in told


def test_a_terminal_that_is_closed_cancels_as_ctrl_c_does(
    started: Callable[..., OnTerminal],
) -> None:
    run = started(0.5, OnTerminal)
    until(lambda: run.is_over or _works(run), "work")
    run.close()
    assert run.process.wait(60) == 130
    assert "saved" in run.log()
    _is_cancelled_by(run, "a closed terminal (SIGHUP)")


def test_sigterm_cancels_as_ctrl_c_does(started: Callable[..., Foreground]) -> None:
    run = started(0.5)
    until(lambda: run.is_over or _works(run), "work")
    run.process.send_signal(signal.SIGTERM)
    said, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 130, said
    assert said.splitlines()[-1] == (
        "cancelled by SIGTERM; the same command goes on, from what the run has saved"
    )
    assert "saved" in run.log()
    _is_cancelled_by(run, "SIGTERM")


def test_a_run_whose_command_is_killed_is_not_left_running(
    started: Callable[..., Foreground],
) -> None:
    run = started(0.5)
    until(lambda: run.is_over or _works(run), "work")
    run.process.kill()
    run.process.wait()
    until(lambda: not run.left(), "the end of its processes", 60)
    assert "saved" in run.log()
    [first, second] = json.loads(run.hpcrun("status", "e", "--json"))
    assert (first["state"], first["over"], second["over"]) == ("cancelled", True, True)
    assert "cancelled: interrupted by SIGTERM." in run.hpcrun("why", "e/0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_waits_no_longer_leaves_the_runs_running(
    started: Callable[..., Foreground], number: signal.Signals
) -> None:
    run = started(0, Foreground, "submit", "--wait", "cluster=local")
    until(lambda: run.is_over or _works(run), "work")
    run.process.send_signal(number)
    said, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 130, said
    assert "no longer waiting; the runs go on. `hpcrun status" in said
    assert "hpcrun cancel" in said.splitlines()[-1]
    [first, second] = json.loads(run.hpcrun("status", "e", "--json"))
    assert (first["state"], second["state"]) == ("running", "waiting")
