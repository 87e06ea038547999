"""A submit that is killed at any instant, and then repeated: each run is in one job, and in no two.

The queue here is a stand-in that remembers what it was given; no Slurm is behind it. What two
submitters do at once is shown on a real one (tests/cluster/test_submission.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcrun.cluster import processes
from tests.operators import PATH

PYTHON = sys.executable
RUNS = 5
# Every such instant; all of them are HPCRUN_THOROUGH's.
STRIDE = 1 if os.environ.get("HPCRUN_THOROUGH") == "1" else 9

# sbatch takes a script down and says its number; asked for its jobs, squeue has all of them wait.
QUEUE = (
    f"#!{PYTHON} -IS\n"
    + r"""
import os, re, sys, time
here = os.path.dirname(os.path.abspath(__file__))
jobs = os.path.join(here, "jobs")
command, arguments = os.path.basename(__file__), sys.argv[1:]
known = open(jobs).read().split("\n")[:-1] if os.path.exists(jobs) else []
if command == "sbatch":
    if os.path.exists(os.path.join(here, "slow")):
        os.remove(os.path.join(here, "slow"))
        time.sleep(6)
    with open(jobs, "a") as stream:
        stream.write(arguments[-1] + "\n")
    if os.path.exists(os.path.join(here, "lose")):
        os.remove(os.path.join(here, "lose"))
        print("sbatch: error: Batch job submission failed: Socket timed out", file=sys.stderr)
        sys.exit(1)
    print("Submitted batch job", 100 + len(known))
elif command == "squeue":
    for index, script in enumerate(known):
        array = re.search("--array=([0-9,-]+)", open(script).read())
        if "%F|%o" in " ".join(arguments):
            print(f"{100 + index}|{script}")
        elif re.search(rf"--jobs=(.*,)?{100 + index}(,| |$)", " ".join(arguments)):
            name = f"{100 + index}_[{array[1]}]" if array else 100 + index
            print(f"{name}|PENDING|Priority||N/A|N/A|0:00|(null)")
"""
)

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


class Desk:
    """A spec of two shapes, a root and a queue."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "root"
        for name in ("code", "bin", "site"):
            (directory / name).mkdir(parents=True)
        for command in ("sbatch", "squeue", "sacct", "scontrol"):
            program = directory / "bin" / command
            program.write_text(QUEUE)
            program.chmod(0o755)
        (directory / "site" / "sitecustomize.py").write_text(KILLER)
        self.spec([0, 1, 2])

    def spec(self, values: list[int]) -> None:
        spec = {
            "name": "e",
            "cluster": "slurm",
            "entry": ["true"],
            "config": {"x": 0},
            "environment": {"python": PYTHON},
            "sweep": {
                "union": [
                    {"grid": {"config.x": values}},
                    {"grid": {"config.x": [7, 8], "resources.nodes": [2]}},
                ]
            },
        }
        (self.directory / "code" / "e.yaml").write_text(json.dumps(spec))

    def submit(self, *arguments: str, **kill: Any) -> subprocess.CompletedProcess[str]:
        """`hpcrun submit`, ended before its Nth write or call where ``KILL_AT`` says so."""
        variables = {"KILL_COUNT": str(self.directory / "count"), "KILL_ROOT": str(self.root)}
        variables |= (
            {"PYTHONPATH": f"{self.directory / 'site'}:{':'.join(sys.path)}"} if kill else {}
        )
        return subprocess.run(
            [PYTHON, "-m", "hpcrun", "submit", "e.yaml", "--root", str(self.root), *arguments],
            cwd=self.directory / "code",
            env={
                **os.environ,
                "PATH": f"{self.directory / 'bin'}:{PATH}",
                **{name: str(value) for name, value in (variables | kill).items()},
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def queued(self) -> Counter[str]:
        """How often each run's values are in the queue."""
        found: Counter[str] = Counter()
        jobs = self.directory / "bin" / "jobs"
        for script in jobs.read_text().splitlines() if jobs.exists() else []:
            submission = Path(script).parent
            index = int(Path(script).stem.rpartition("-")[2])
            plan = json.loads((submission / "plan.json").read_text())
            labels = {run[0]: run[2] for run in plan["runs"]}
            found.update(labels[number] for number in plan["arrays"][index]["runs"])
        return found


ALL = Counter(["x=0", "x=1", "x=2", "x=7,nodes=2", "x=8,nodes=2"])


@pytest.mark.timeout(1800)
def test_killed_at_every_write_and_call(tmp_path: Path) -> None:
    whole = Desk(tmp_path / "whole")
    assert whole.submit(KILL_AT=0).returncode == 0
    assert whole.queued() == ALL
    count = int((whole.directory / "count").read_text())
    assert count > 40
    for instant in range(1, count + 1, STRIDE):
        desk = Desk(tmp_path / str(instant))
        killed = desk.submit(KILL_AT=instant)
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
        [PYTHON, "-m", "hpcrun", "submit", "e.yaml", "--root", str(desk.root)],
        cwd=tmp_path / "code",
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{PATH}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    script = desk.root / "e" / "submissions" / "1" / "script-0.sbatch"
    deadline = time.monotonic() + 60
    while not processes.runs("sbatch", str(script)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
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
    assert desk.submit().returncode == 0
    desk.spec([0, 5, 2])
    said = desk.submit().stderr
    assert "5 runs (1 new, 4 are queued or running already)" in said
    assert desk.queued() == ALL + Counter(["x=5"])
