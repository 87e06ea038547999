"""`hpcrun status` on a real Slurm, parts of which are away."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpcrun.state import layout, ledger
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
        # Supervisors of the test before may still write the ends of their runs.
        self.root /= f"desk-{time.time_ns()}"
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
        found: list[dict[str, Any]] = []

        def is_set() -> bool:
            found[:] = self.status()
            return states(found) == STATES

        try:
            until(is_set, "all as they should be", 120)
        except TimeoutError:
            pytest.fail(f"{found}\n{self.explain('looked-at')}")

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
        # On a busy machine it says how far it is, too.
        lines = answer.stderr.splitlines(keepends=True)
        said = "".join(line for line in lines if not line.startswith("reading runs: "))
        return json.loads(answer.stdout), said, calls


@pytest.fixture
def desk(slurm: Cluster) -> Iterator[Desk]:
    found = Desk(slurm)
    yield found
    slurm.run(["scancel", "--me"], check=False)
    slurm.run(["rm", "-rf", str(found.root), str(found.directory)], check=False)


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
    assert said.startswith("warning: ")
    assert " states as of 20" in said
    assert took < 6
    assert "as many runs of the array run as max_parallel allows" in runs[5]["reason"]

    desk.cluster.start_database_daemon()
    runs, said, calls = desk.look()
    assert (states(runs), ages(runs)) == (STATES, alive)
    assert said.startswith("warning: slurmctld ")

    desk.cluster.start_controller()
    runs, said, calls = desk.look()
    assert (states(runs), said, ages(runs)) == (STATES, "", [False] * 6)


READERS = (
    ("status",),
    ("status", "--cost"),
    ("why",),
    ("why", "looked-at/2"),
    ("logs",),
    ("results",),
    ("list",),
    ("show", "looked-at/2"),
    ("diff", "looked-at/2", "looked-at/3"),
    ("report", "looked-at", "-o", "report.html", "--force"),
    ("cancel", "looked-at", "--dry-run"),
    ("requeue", "looked-at", "--dry-run"),
    ("clean", "looked-at", "--dry-run"),
    ("submit", "looked-at.yaml", "--dry-run"),
)
# These ask nothing of Slurm.
MUTE = ("logs", "show", "diff")
SLOWEST = 4.0


def test_daemons_that_are_stopped_cost_a_reader_seconds(desk: Desk) -> None:
    # What has not begun needs slurmctld for its step.
    until(lambda: not any(run["reason"] for run in desk.status()[2:5]), "all at work", 120, 0.5)
    intent = layout.experiment(desk.root, "looked-at").run(5)
    ledger.set_intent(intent, ledger.CANCELLED)
    for path in (intent.directory, intent.intent):
        shutil.chown(path, desk.cluster.uid, desk.cluster.uid)
    runs, said, _ = desk.look()
    assert said == ""
    known = states(runs)
    some = [argv for argv in READERS if argv in (("status",), ("why",))]
    for frozen, readers in (
        (("slurmctld", "slurmdbd"), READERS),
        (("slurmctld",), some),
        (("slurmdbd",), some),
    ):
        took = {" ".join(argv): quickest(desk, argv, frozen) for argv in readers}
        print(desk.cluster.version, *frozen, took)
        assert max(took.values()) < SLOWEST, took
        with silent(desk, frozen):
            assert states(desk.look()[0]) == known, desk.hpcrun("why", check=False).stdout
            assert not clients(desk.cluster)

    assert quickest(desk, ("cancel", "looked-at/2"), ("slurmctld",)) < SLOWEST
    assert desk.hpcrun("cancel", "looked-at/2", timeout=90).returncode == 0
    until(lambda: desk.status()[2]["over"], "the end of a cancelled run", 60)
    assert states(desk.status())[2] == "cancelled"


def quickest(desk: Desk, argv: tuple[str, ...], frozen: tuple[str, ...]) -> float:
    """Return how many seconds a command takes that reads, on a machine that may be busy."""
    took = float("inf")
    for _ in range(4):
        with silent(desk, frozen):
            took = min(took, read(desk, argv, frozen))
        if took < SLOWEST:
            break
    return took


@contextlib.contextmanager
def silent(desk: Desk, frozen: tuple[str, ...]) -> Iterator[None]:
    """Daemons that answer nothing, and after them a second in which slurmctld hears its nodes.

    Once it has heard nothing for ``SlurmdTimeout`` it takes their jobs away.
    """
    desk.cluster.freeze(*frozen)
    try:
        yield
    finally:
        desk.cluster.thaw(*frozen)
        time.sleep(1)


def read(desk: Desk, argv: tuple[str, ...], frozen: tuple[str, ...]) -> float:
    """Type a command that reads, and return how many seconds it took."""
    began = time.monotonic()
    done = desk.hpcrun(*argv, check=False, timeout=60)
    took = time.monotonic() - began
    is_told = argv[0] == "cancel" and "--dry-run" not in argv
    assert done.returncode == (4 if is_told else 0), done.stderr
    assert ("marked as cancelled, and Slurm could not be told" in done.stderr) == is_told
    if "slurmctld" in frozen and argv[0] not in MUTE:
        have = "slurmctld and slurmdbd have" if len(frozen) > 1 else "slurmctld has"
        assert re.search(rf"{have} not answered for [123](\.\d)? s", done.stderr), argv
        if argv[0] != "submit":
            assert " as of 20" in done.stderr, argv
            assert " ago" in done.stderr, argv
    return round(took, 2)


def clients(cluster: Cluster) -> list[str]:
    """Slurm's clients that the user has left behind."""
    found = cluster.run(["ps", "-u", str(cluster.uid), "-o", "comm="], check=False).stdout.split()
    return [name for name in found if name in ("squeue", "sacct", "scancel", "scontrol", "sinfo")]


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
