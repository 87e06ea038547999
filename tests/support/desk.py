"""A spec, a root, and a queue that remembers what it was given; no Slurm is behind it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support import command
from tests.support.operators import PATH

PYTHON = sys.executable

# sbatch takes a script down and says its number; asked for its jobs, squeue has all of them wait.
# In ``room`` stands how many tasks there may be, in ``over`` how many have ended.
QUEUE = (
    f"#!{PYTHON} -IS\n"
    + r"""
import os, re, sys, time
here = os.path.dirname(os.path.abspath(__file__))
jobs = os.path.join(here, "jobs")
command, arguments = os.path.basename(__file__), sys.argv[1:]
known = open(jobs).read().split("\n")[:-1] if os.path.exists(jobs) else []
def text(script):
    return open(script).read()
def tasks(script):
    array = re.search("--array=([0-9,-]+)", text(script))
    ends = [part.split("-") for part in array[1].split(",")] if array else [["0"]]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
def number(name):
    path = os.path.join(here, name)
    return int(open(path).read() or 0) if os.path.exists(path) else None
waiting = sum(map(tasks, known)) - (number("over") or 0)
if command == "sbatch":
    with open(os.path.join(here, "calls"), "a") as calls:
        print(*arguments, file=calls)
    room = number("room")
    if room is not None and waiting + tasks(arguments[-1]) > room:
        print("sbatch: error: AssocMaxSubmitJobLimit", file=sys.stderr)
        print("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
              " (job submit limit, user's size and/or time limits)", file=sys.stderr)
        sys.exit(1)
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
elif command == "squeue" and "--format=%i" in arguments:
    print("1\n" * waiting, end="")
elif command == "squeue":
    for index, script in enumerate(known):
        array = re.search("--array=([0-9,-]+)", text(script))
        if "%F|%o" in " ".join(arguments):
            print(f"{100 + index}|{100 + index}|{script}")
        elif re.search(rf"--jobs=(.*,)?{100 + index}(,| |$)", " ".join(arguments)):
            name = f"{100 + index}_[{array[1]}]" if array else 100 + index
            print(f"{name}|PENDING|Priority||N/A")
"""
)


class Desk:
    """A spec of two shapes, a root and a queue."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "root"
        for name in ("code", "bin", "site"):
            (directory / name).mkdir(parents=True)
        for name in ("sbatch", "squeue", "sacct", "scontrol", "srun"):
            program = directory / "bin" / name
            program.write_text(QUEUE)
            program.chmod(0o755)
        self.spec([0, 1, 2])

    def spec(self, values: list[int], **sweep: Any) -> None:
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
                ],
                **sweep,
            },
        }
        (self.directory / "code" / "e.yaml").write_text(json.dumps(spec))

    @property
    def environment(self) -> dict[str, str]:
        """With these commands in place of Slurm's."""
        return {**os.environ, "PATH": f"{self.directory / 'bin'}:{PATH}"}

    def submit(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """`hpcrun submit e.yaml`, with these variables."""
        given = {name: str(value) for name, value in variables.items()}
        return command.hpcrun(
            *("submit", "e.yaml", "--root", self.root, *arguments),
            cwd=self.directory / "code",
            env={**self.environment, **given},
        )

    @property
    def scripts(self) -> list[Path]:
        """What sbatch took, in order."""
        jobs = self.directory / "bin" / "jobs"
        return [Path(line) for line in jobs.read_text().splitlines()] if jobs.exists() else []

    def queued(self) -> Counter[str]:
        """How often each run's values are in the queue."""
        found: Counter[str] = Counter()
        for script in self.scripts:
            plan = json.loads((script.parent / "plan.json").read_text())
            labels = {run[0]: run[2] for run in plan["runs"]}
            found.update(labels[run] for run in runs_of(script))
        return found


def runs_of(script: Path) -> list[int]:
    """The runs that a script starts: no array here has an offset."""
    text = script.read_text()
    array = re.search(r"--array=([0-9,-]+)", text)
    numbers = array[1] if array else re.findall(r"--run (\d+)", text)[-1]
    found: list[int] = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
