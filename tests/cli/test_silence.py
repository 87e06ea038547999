"""What commands do while Slurm takes connections and answers nothing. Slurm is a shim here.

The same is shown with stopped daemons in tests/cluster/test_status.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpcrun import tools
from hpcrun.observe.status import slurm_cache
from hpcrun.state import ledger
from tests.support import command
from tests.support.experiment import Experiment, path_with, shim_calls, slurm_shim
from tests.support.waiting import until

QUEUE = "100_2|RUNNING|None|node1|N/A\n100_3|PENDING|Priority||N/A\n"
# Seconds from its start for which each reader waits here, in place of 3, and that it may take.
LIMIT, MOST = 1.8, 30


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    monkeypatch.setenv("HPCRUN_SLURM_TIMEOUT", str(LIMIT))
    return slurm_shim(tmp_path / "shim", squeue=QUEUE)


@pytest.fixture
def study(tmp_path: Path, shim: Path) -> Experiment:
    """Run 1 completed, run 2 runs, run 3 waits; run 4 was cancelled before its job began."""
    study = Experiment(tmp_path / "root")
    study.submit((1, 2, 3, 4), job_id="100")
    study.start(1, job_id="100_1")
    study.log(1, 1, 0, "trained\n")
    study.end(1)
    study.start(2, job_id="100_2", when=time.time() - 600)
    ledger.set_intent(study.run(4), ledger.CANCELLED)
    return study


def hang(shim: Path) -> None:
    for name in ("squeue", "sacct", "scancel", "scontrol", "sinfo", "sbatch"):
        program = shim / name
        program.write_text(f"#!/bin/sh\necho {name} >> '{shim}/calls'\nsleep 300\n")
        program.chmod(0o755)


def hpcrun(*arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    # No command may take as long as one of the requests could.
    return command.hpcrun(*arguments, root=root, timeout=20)


def left(shim: Path) -> list[str]:
    """The stand-in's processes that have outlived their command."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                argv = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if str(shim).encode() in argv:
                found.append(process.name)
    return found


READERS = {
    "status": ("status", "study"),
    "status --cost": ("status", "study", "--cost"),
    "why": ("why", "study"),
    "results": ("results", "study"),
    "list": ("list",),
    "cancel": ("cancel", "study", "--dry-run"),
    "requeue": ("requeue", "study", "--dry-run"),
    "clean": ("clean", "study", "--dry-run"),
}
if tools.has("report"):
    READERS["report"] = ("report", "study", "-o", "report.html")


def test_readers_go_on_with_what_is_known_and_its_age(
    study: Experiment, shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = hpcrun("results", "study", root=tmp_path / "root")
    assert (before.returncode, "answered" in before.stderr) == (0, False)
    hang(shim)
    # What Slurm said a moment ago is taken without asking it again.
    known = json.loads(slurm_cache.default_path().read_text())
    pause = max(slurm_cache.LEAST_PAUSE, slurm_cache.PAUSES * known["took"])
    until(lambda: time.time() > known["asked"] + pause, "an answer that is not of this moment", 60)
    began = time.monotonic()
    # All at once, as each waits.
    started = {name: command.start(*argv, root=tmp_path / "root") for name, argv in READERS.items()}
    try:
        told = {name: process.communicate(timeout=MOST) for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    assert time.monotonic() - began < MOST
    for name, (out, said) in told.items():
        process = started[name]
        assert process.returncode == 0, said
        assert re.search(r"slurmctld and slurmdbd have not answered for [01](\.\d)? s;", said), name
        if name == "cancel":
            # Not by what was known before, but by what is on disk.
            assert "showing what is on disk, as of 20" in said
            assert out.count("would cancel") == 3
        else:
            assert "; states as of 20" in said, name
        assert " ago\n" in said
        assert "HPCRUN_SLURM_TIMEOUT=60 before the command" in said
    asked = shim_calls(shim)
    assert (asked.count("squeue"), asked.count("sacct")) == (len(READERS), len(READERS))
    until(lambda: not left(shim), "all gone", 5)


def test_what_needs_no_answer_does_not_ask(study: Experiment, shim: Path, tmp_path: Path) -> None:
    hang(shim)
    for argv in (("logs", "study/1"), ("show", "study/1"), ("diff", "study/1", "study/2")):
        assert hpcrun(*argv, root=tmp_path / "root").returncode == 0
    assert shim_calls(shim) == []


def test_a_requeue_that_is_only_tried_says_what_is_not_known(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    hpcrun("results", "study", root=tmp_path / "root")
    hang(shim)
    done = hpcrun("requeue", "study", "--dry-run", "--json", root=tmp_path / "root")
    found = {one["run"]: one for one in json.loads(done.stdout)}
    assert [found[run]["action"] for run in (1, 2, 3, 4)] == ["left"] + ["unknown"] * 3
    assert "running" in found[2]["reason"]
    assert "as of 20" in found[2]["reason"]


def test_a_cancelled_run_stays_cancelled_though_slurm_was_not_told(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    hang(shim)
    began = time.monotonic()
    done = hpcrun("cancel", "study/2-3", "--yes", root=tmp_path / "root")
    assert time.monotonic() - began < MOST
    assert done.returncode == 4
    assert "marked as cancelled, and Slurm could not be told" in done.stderr
    assert "those that wait end as they start" in done.stderr
    assert [ledger.intent(study.run(run)) for run in (2, 3)] == ["cancelled"] * 2
    # It was not asked a second time, and the command can be repeated.
    assert "scancel" not in shim_calls(shim)
    slurm_shim(shim, squeue=QUEUE)
    assert hpcrun("cancel", "study/2-3", "--yes", root=tmp_path / "root").returncode == 0
    assert "scancel 100_2 100_3" in shim_calls(shim)


def test_a_cancel_that_slurm_takes_long_for_is_waited_for_and_can_be_left(
    study: Experiment, shim: Path, tmp_path: Path
) -> None:
    (shim / "scancel").write_text(f"#!/bin/sh\necho scancel >> '{shim}/calls'\nsleep 300\n")
    process = command.start("cancel", "study/2", root=tmp_path / "root")
    assert process.stderr is not None
    try:
        told = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert told == "waiting for slurmctld to answer scancel, 60 s at most\n"
    assert process.returncode == 130
    assert "marked as cancelled, and Slurm may not have been told" in said
    assert ledger.intent(study.run(2)) == "cancelled"
    until(lambda: not left(shim), "all gone", 5)


def test_following_goes_on_and_says_so(study: Experiment, shim: Path, tmp_path: Path) -> None:
    hang(shim)
    process = command.start("logs", "-f", "study/2", root=tmp_path / "root")
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        study.log(2, 1, 0, "first\n")
        assert process.stdout.readline() == "r0 | first\n"
        assert "whether runs are over is known only from disk" in process.stderr.readline()
        study.log(2, 1, 0, "second\n")
        assert process.stdout.readline() == "r0 | second\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 130
    finally:
        process.kill()
    until(lambda: not left(shim), "all gone", 5)


def test_a_wrong_limit_is_told(study: Experiment, tmp_path: Path) -> None:
    done = command.hpcrun(
        "list", root=tmp_path / "root", env={**os.environ, "HPCRUN_SLURM_TIMEOUT": "soon"}
    )
    assert done.returncode == 2
    assert "HPCRUN_SLURM_TIMEOUT='soon' is not a number of seconds" in done.stderr
