"""`hpcrun status` on a real Slurm, parts of which are away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.usually("22.05")

STATES = ["failed", "completed", "running", "running", "running", "pending"]
# As the real commands, which are asked, but counted.
COUNTED = """#!/bin/sh
echo {name} >> {log}
PATH=/usr/bin:/bin exec {name} "$@"
"""


class Desk(Workbench):
    """A sweep of six runs: one that failed, one that completed, three at work and one waiting."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "status")
        self.calls = self.directory / "calls"
        self.bin = self.directory / "bin"
        cluster.run(["mkdir", "-p", str(self.bin)])
        for name in ("squeue", "sacct"):
            path = self.write(f"bin/{name}", COUNTED.format(name=name, log=self.calls))
            path.chmod(0o755)
        spec = self.spec(
            "looked-at",
            {
                "entry": ["sh", "-c", "case $0 in 0) exit 3;; 1) exit;; *) sleep 600;; esac"],
                "args": ["${config.x}"],
                "cluster": "bed",
                "config": {"x": 0},
                "resources": {"time": "00:10:00", "mem": "500M"},
                "environment": {"python": cluster.python},
                "recovery": {"requeue": False},
                "sweep": {"grid": {"config.x": {"range": [6]}}, "max_parallel": 3},
            },
        )
        self.hpcrun("submit", spec)
        until(
            lambda: [one["state"] for one in self.status()] == STATES, "all as they should be", 90
        )

    def look(self, **environment: str) -> tuple[list[dict[str, Any]], str, list[str]]:
        """The runs, what was said on stderr and the commands that Slurm was asked by."""
        # Answers are good for a second.
        time.sleep(1.2)
        self.calls.unlink(missing_ok=True)
        path = f"{self.bin}:{self.cluster.python.rpartition('/')[0]}:/usr/bin:/bin"
        answer = self.cluster.run(
            [self.cluster.python, "-m", "hpcrun", "status", "looked-at", "--json"],
            env={"HPCRUN_ROOT": str(self.root), "PATH": path, **environment},
            cwd=str(self.directory),
        )
        calls = self.calls.read_text().split() if self.calls.exists() else []
        return json.loads(answer.stdout), answer.stderr, calls


@pytest.fixture
def desk(slurm: Cluster) -> Iterator[Desk]:
    found = Desk(slurm)
    yield found
    slurm.run(["scancel", "--me"], check=False)
    slurm.run(["rm", "-rf", str(found.root / "looked-at"), str(found.directory)], check=False)


def states(runs: list[dict[str, Any]]) -> list[str]:
    return [str(run["state"]) for run in runs]


def ages(runs: list[dict[str, Any]]) -> list[bool]:
    """Which of the runs are marked with the time of what is known."""
    return ["; as of 20" in (run["reason"] or "") for run in runs]


def test_whatever_is_away(desk: Desk) -> None:
    runs, said, _ = desk.look()
    assert (states(runs), said) == (STATES, "")
    assert "as many runs of the array run as max_parallel allows" in runs[5]["reason"]
    assert runs[5]["queued"] > 0

    runs, said, calls = desk.look()
    assert (states(runs), said, calls) == (STATES, "", ["squeue"])

    without_accounting(desk)

    desk.cluster.stop_database_daemon()
    runs, said, calls = desk.look()
    assert (states(runs), said, ages(runs), calls) == (STATES, "", [False] * 6, ["squeue"])

    desk.cluster.stop_controller()
    alive = [False] * 2 + [True] * 4
    began = time.monotonic()
    runs, said, calls = desk.look()
    took = time.monotonic() - began
    assert (states(runs), ages(runs)) == (STATES, alive)
    assert "warning: Slurm does not answer" in said
    assert took < 12
    assert "as many runs of the array run as max_parallel allows" in runs[5]["reason"]

    desk.cluster.start_database_daemon()
    runs, said, calls = desk.look()
    assert (states(runs), ages(runs)) == (STATES, alive)
    assert "slurmctld does not answer" in said

    desk.cluster.start_controller()
    runs, said, calls = desk.look()
    assert (states(runs), said, ages(runs)) == (STATES, "", [False] * 6)


def without_accounting(desk: Desk) -> None:
    """The clients are told that there is none; the controller is the same."""
    conf = desk.cluster.run(["cat", "/etc/slurm/slurm.conf"]).stdout
    lines = [line for line in conf.splitlines() if not line.startswith("AccountingStor")]
    there = desk.write("slurm.conf", "\n".join(lines) + "\n")
    asked = []
    for _ in range(2):
        runs, said, calls = desk.look(SLURM_CONF=str(there))
        assert (states(runs), said) == (STATES, "")
        asked.append(calls)
    assert asked == [["squeue", "sacct"], ["squeue"]]
