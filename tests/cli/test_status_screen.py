"""What ``hpcrun status`` shows on a terminal; Slurm's clients are stand-ins."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.state import files
from tests.support import command
from tests.support.experiment import T0, Experiment, path_with, slurm_shim

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
GIB = 2**30


class Terminal:
    """A command at a terminal of so many rows and columns."""

    def __init__(self, *arguments: str, root: Path, rows: int = 20, columns: int = 160) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "HPCRUN_ROOT": str(root), "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command.argv(*arguments),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.raw = ""

    @property
    def text(self) -> str:
        return CONTROL.sub("", self._read())

    def wait_for(self, is_there: Callable[[str], bool], seconds: float = 30) -> str:
        deadline = time.monotonic() + seconds
        while not is_there(self.text):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)
        return self.text

    def end(self) -> int:
        code = self.process.wait(30)
        self._read()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)

    def _read(self) -> str:
        try:
            while data := os.read(self._master, 1 << 16):
                self.raw += data.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return self.raw


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = slurm_shim(
        tmp_path / "shim",
        squeue="100_0|RUNNING|None|node1|N/A\n100_1|PENDING|Priority||2030-01-02T03:04:00\n",
    )
    monkeypatch.setenv("PATH", path_with(directory))
    return directory


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    study = Experiment(tmp_path / "root")
    study.submit(range(2), swept={n: {"config.lr": 10.0**-n} for n in range(2)}, when=time.time())
    now = time.time()
    first = study.start(0, job_id="100_0", when=now - 100)
    study.end(0, outcome="failed", kind="preempted", message="preempted")
    second = study.start(0, 2, job_id="100_0", when=now - 60)
    assert first != second
    study.metrics(0, 2, ())
    for step in range(1, 51):
        line = {"step": step, "time": now - 50 + step, "loss": 5 - step / 20, "tokens": step * 8192}
        files.append(second.metrics, line)
    gpus = [{"index": 0, "memory": 61 * GIB, "memory_total": 80 * GIB}]
    files.append(second.telemetry("node1"), {"time": now, "cpu": 3.0, "gpus": gpus})
    return study


def test_one_picture(study: Experiment, tmp_path: Path) -> None:
    terminal = Terminal("status", root=tmp_path / "root")
    try:
        assert terminal.end() == 0
        text = terminal.text
    finally:
        terminal.close()
    header, running, waiting, *rest = text.splitlines()
    assert header.split() == [
        *("RUN", "lr", "STATE", "ATTEMPT", "CAUSE", "STEP", "PROGRESS", "loss", "TOK/S"),
        *("GPU-MEM", "ETA", "QUEUED", "JOB", "NODES", "UPDATED"),
    ]
    assert running.split()[:9] == [
        *("study/0", "1.0", "running", "2", "preempted", "50/100", "█████", "50%", "2.5")
    ]
    assert "8.19k" in running
    assert "61/80GiB" in running
    assert " 50 s " in running
    assert waiting.split()[2] == "pending"
    assert rest[0] == (
        "study/1: Priority: waits behind jobs of higher priority; "
        "Slurm expects it at 2030-01-02 03:04"
    )
    assert rest[-1] == "1 running, 1 pending"


def test_a_narrow_terminal_goes_without_what_matters_least(
    study: Experiment, tmp_path: Path
) -> None:
    terminal = Terminal("status", root=tmp_path / "root", columns=80)
    try:
        assert terminal.end() == 0
        header, running, *_ = terminal.text.splitlines()
    finally:
        terminal.close()
    assert "STATE" in header
    assert "ETA" in header
    assert "JOB" not in header
    assert len(running) <= 80


def test_the_live_screen_goes_on_until_the_runs_are_over(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    terminal = Terminal("status", "study/0", "--watch", root=tmp_path / "root")
    try:
        text = terminal.wait_for(lambda text: "Ctrl-C leaves" in text)
        assert "1 running" in text
        assert "██▇▇▆▆▅▅▄▄▃▃▂▂▁▁" in text
        study.metrics(0, 2, range(51, 101), restored=None, loss=2.0)
        study.end(0, 2)
        assert terminal.end() == 0
    finally:
        terminal.close()
    # What is left on the terminal is the last table.
    last = CONTROL.sub("", terminal.raw.rpartition("\x1b[?1049l")[2])
    assert "completed" in last
    assert "100/100" in last


def test_ctrl_c_gives_the_terminal_back(study: Experiment, tmp_path: Path) -> None:
    terminal = Terminal("status", "--watch", root=tmp_path / "root")
    try:
        terminal.wait_for(lambda text: "Ctrl-C leaves" in text)
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert terminal.raw.count("\x1b[?1049h") == terminal.raw.count("\x1b[?1049l") == 1
    assert "Traceback" not in terminal.raw


def test_a_screen_that_is_too_small_shows_those_at_work(shim: Path, tmp_path: Path) -> None:
    lines = "".join(f"100_{run}|RUNNING|None|n1|N/A\n" for run in (30, 35))
    rest = "100_[0-29,31-34,36-39]|PENDING|Priority||N/A\n"
    slurm_shim(shim, squeue=lines + rest)
    study = Experiment(tmp_path / "root")
    study.submit(range(40), when=T0)
    for run in (30, 35):
        study.start(run, job_id=f"100_{run}")
    terminal = Terminal("status", "--watch", root=tmp_path / "root", rows=12)
    try:
        text = terminal.wait_for(lambda text: "Ctrl-C leaves" in text)
    finally:
        terminal.close()
    assert "study/30" in text
    assert "study/35" in text
    assert "… 34 more runs" in text
    assert "38 pending, 2 running" in text
    picture = text.split("Ctrl-C leaves")[0].strip().splitlines()
    assert len(picture) <= 12


def test_slurm_that_does_not_answer_is_told_on_the_screen(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    terminal = Terminal("status", "--watch", root=tmp_path / "root")
    try:
        terminal.wait_for(lambda text: "1 pending" in text)
        slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
        text = terminal.wait_for(lambda text: "Slurm does not answer" in text)
        assert terminal.process.poll() is None
    finally:
        terminal.close()
    assert "Priority: waits behind" in text
    assert "; as of 20" in text


def test_the_screen_lives_while_slurm_takes_its_time(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    answers = (shim / "squeue").read_text()
    (shim / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    terminal = Terminal("status", "--watch", root=tmp_path / "root")
    try:
        terminal.wait_for(lambda text: "no answer for 2 s" in text)
    finally:
        terminal.close()
    (shim / "squeue").write_text(answers)
    terminal = Terminal("status", "--watch", root=tmp_path / "root")
    try:
        terminal.wait_for(lambda text: "1 pending" in text)
        (shim / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
        text = terminal.wait_for(lambda text: "no answer for 2 s" in text)
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    finally:
        terminal.close()
    assert "Priority: waits behind" in text.rpartition("no answer for 2 s")[2]
    assert "Traceback" not in terminal.raw


def test_a_terminal_that_knows_no_blocks(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "iso-8859-1")
    terminal = Terminal("status", root=tmp_path / "root")
    try:
        assert terminal.end() == 0
        assert "?????" in terminal.text
    finally:
        terminal.close()
