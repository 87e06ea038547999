"""A submit that is killed at any instant, and then repeated: each run is in one job, and in no two.

The queue here is a stand-in (tests/support/desk.py). What two submitters do at once is shown on a
real Slurm (tests/cluster/test_submission.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hpcrun.submission.local import processes
from tests.support import command
from tests.support.desk import Desk, runs_of
from tests.support.waiting import until

# Every such instant; all of them are HPCRUN_THOROUGH's.
STRIDE = 1 if os.environ.get("HPCRUN_THOROUGH") == "1" else 9

# Ends the process before its Nth write or call; without N counts them.
KILLER = r"""
import atexit, os, signal, sys
at, seen = int(os.environ.get("KILL_AT", "0")), 0
root = os.environ["KILL_ROOT"]
def hook(event, arguments):
    global seen
    if event == "open":
        path, mode, flags = arguments
        if not str(path).startswith(root) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
    elif event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen"):
        return
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
if "-m" in sys.orig_argv and "hpcrun" in sys.orig_argv:
    sys.addaudithook(hook)
    if not at:
        atexit.register(lambda: open(os.environ["KILL_COUNT"], "w").write(str(seen)))
"""


ALL = Counter(["x=0", "x=1", "x=2", "x=7,nodes=2", "x=8,nodes=2"])


def _submit_until(desk: Desk, instant: int) -> subprocess.CompletedProcess[str]:
    """Submit, and end it before its Nth write or call."""
    site = desk.directory / "site"
    (site / "sitecustomize.py").write_text(KILLER)
    return desk.submit(
        KILL_AT=instant,
        KILL_COUNT=desk.directory / "count",
        KILL_ROOT=desk.root,
        PYTHONPATH=f"{site}:{':'.join(sys.path)}",
    )


@pytest.mark.timeout(1800)
def test_killed_at_every_write_and_call(tmp_path: Path) -> None:
    whole = Desk(tmp_path / "whole")
    assert _submit_until(whole, 0).returncode == 0
    assert whole.queued() == ALL
    count = int((whole.directory / "count").read_text())
    assert count > 40
    for instant in range(1, count + 1, STRIDE):
        desk = Desk(tmp_path / str(instant))
        killed = _submit_until(desk, instant)
        assert killed.returncode == -signal.SIGKILL, (instant, killed.stderr)
        again = desk.submit()
        assert again.returncode == 0, (instant, again.stderr)
        assert desk.queued() == ALL, instant
        assert "nothing to submit" in desk.submit().stderr
        assert desk.queued() == ALL, instant


def test_an_sbatch_that_outlives_its_submit_is_waited_for(tmp_path: Path) -> None:
    """Killed as sbatch works: Slurm takes the job a moment after the next submit has begun."""
    desk = Desk(tmp_path)
    (tmp_path / "bin" / "slow").touch()
    submit = subprocess.Popen(
        command.argv("submit", "e.yaml", "--root", desk.root),
        cwd=tmp_path / "code",
        env=desk.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    script = desk.root / "e" / "submissions" / "1" / "script-0.sbatch"
    until(lambda: processes.runs("sbatch", str(script)), "sbatch started", pause=0.01)
    submit.kill()
    submit.wait()
    assert not desk.queued()
    again = desk.submit()
    assert again.returncode == 0, again.stderr
    assert f"waiting for an sbatch that was begun before: {script}" in again.stderr
    assert desk.queued() == ALL


def test_an_answer_that_is_lost(tmp_path: Path) -> None:
    """Slurm takes the job and sbatch hears nothing: it is found in the queue."""
    desk = Desk(tmp_path)
    (tmp_path / "bin" / "lose").touch()
    first = desk.submit()
    assert first.returncode == 0, first.stderr
    assert desk.queued() == ALL
    assert "nothing to submit" in desk.submit().stderr


def test_what_was_changed_is_what_is_submitted(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    values = list(range(100, 198))
    desk.spec(values)
    assert desk.submit().returncode == 0
    before = desk.queued()
    assert len(before) == 100
    values[41] = 5
    desk.spec(values)
    said = desk.submit().stderr
    assert "100 runs (1 new, 99 are queued or running already)" in said
    assert desk.queued() == before + Counter(["x=5"])
    assert runs_of(desk.scripts[-1]) == [100]
