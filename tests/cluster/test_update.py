"""`hpcrun update` on a real Slurm, as an ordinary user."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.usually("22.05", "24.11")

SHOWN = ("state", "time", "partition", "qos", "nice")


class Desk(Workbench):
    """An array of six runs, two of which run."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "update")
        self.root /= f"update-{time.time_ns()}"
        self.data: dict[str, Any] = {
            "entry": ["sh", "-c", "sleep 600"],
            "cluster": "bed",
            "config": {"x": 0},
            "resources": {"time": "00:10:00", "mem": "500M"},
            "environment": {"python": cluster.python},
            "sweep": {"grid": {"config.x": {"range": [6]}}, "max_parallel": 2},
        }

    def submit(self) -> None:
        self.hpcrun("submit", self.spec("study", self.data))
        until(lambda: self.states().count("RUNNING") == 2, "two of them run", 60)

    def queue(self) -> dict[str, dict[str, str]]:
        """What Slurm shows, by the number of a task or of a job."""
        argv = ["squeue", "--noheader", "--array", "--me", "--format=%i|%T|%l|%P|%q|%y"]
        rows = [line.split("|") for line in self.cluster.run(argv).stdout.splitlines()]
        return {
            row[0].rpartition("_")[2]: dict(zip(SHOWN, row[1:], strict=True))
            for row in rows
            if row[1] in ("PENDING", "RUNNING")
        }

    def states(self) -> list[str]:
        return [row["state"] for row in self.queue().values()]

    def update(self, *words: str, code: int = 0) -> tuple[dict[int, dict[str, Any]], str]:
        done = self.hpcrun("update", *words, "--yes", "--json", check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return {row["run"]: row for row in json.loads(done.stdout or "[]")}, done.stderr


@pytest.fixture
def desk(slurm: Cluster) -> Iterator[Desk]:
    found = Desk(slurm)
    yield found
    slurm.run(["scancel", "--me"], check=False)
    slurm.run(["rm", "-rf", str(found.root), str(found.directory)], check=False)


def test_what_is_queued_is_changed_and_stays_so(desk: Desk) -> None:
    desk.submit()
    rows, _ = desk.update("study/2-5", "time=00:20:00", "partition=high")
    assert {row["action"] for row in rows.values()} == {"updated"}
    assert rows[2]["before"] == {"time": "00:10:00", "partition": None}
    now = desk.queue()
    assert {(now[run]["time"], now[run]["partition"]) for run in "2345"} == {("20:00", "high")}
    assert (now["0"]["time"], now["0"]["partition"]) == ("10:00", "main")

    # One of a job that runs, which Slurm lets nobody but administrators give more time.
    rows, said = desk.update("study/0", "study/5", "time=00:30:00", code=3)
    assert (rows[0]["action"], rows[5]["action"]) == ("refused", "updated")
    assert "only an administrator raises the limit of a job that runs" in said
    rows, _ = desk.update("study/0", "time=5")
    assert (rows[0]["changes"], desk.queue()["0"]["time"]) == ({"time": "5"}, "5:00")

    for words, told in (
        ("partition=nosuch", "there is no partition nosuch; there are "),
        ("qos=nosuch", "Slurm did not take the QOS nosuch"),
        ("time=5-00:00:00", "beyond a limit"),
        ("priority=4294967000", "Slurm leaves priorities to its administrators"),
        ("nice=-5", "a nice below 0 is an administrator's"),
    ):
        rows, said = desk.update("study/5", words, code=3)
        assert told in said, words
        assert rows[5]["action"] == "refused"
    rows, said = desk.update("study/0", "partition=high", code=2)
    assert "partition stays, as it runs already" in said

    # While it waits: one that is cancelled leaves it its place.
    desk.update("study/5", "nice=7")
    assert desk.queue()["5"]["nice"] == "7"
    # Slurm complains of a task that has ended, and gives the others the limit.
    desk.hpcrun("cancel", "study/1", "--yes")
    rows, said = desk.update("study/5", "max_parallel=3")
    assert "max_parallel is of the whole array" in said
    assert rows[5]["changes"] == {"max_parallel": "3"}
    until(lambda: desk.states().count("RUNNING") == 3, "one more runs", 60)

    # The plan says otherwise, and what is typed is what makes it so.
    desk.data["resources"]["time"] = "00:40:00"
    said = desk.hpcrun("submit", desk.spec("study", desk.data)).stderr
    assert "resources.time 00:30:00 -> 00:40:00" in said
    assert "`hpcrun update study/5 time=00:40:00" in said
    local = desk.hpcrun("submit", "study.yaml", "cluster=local").stderr
    assert "on the cluster bed, and this does not move them here" in local

    shown = desk.hpcrun("show", "study/5").stdout
    assert "time 00:30:00" in shown
    assert "partition high" in shown
    assert "`hpcrun update` changed its job to" in desk.hpcrun("why", "study/5").stdout

    # A job in its place keeps it.
    desk.hpcrun("cancel", "study", "--yes")
    until(lambda: not desk.queue(), "all have ended", 60)
    done = desk.hpcrun("requeue", "study/4-5", "--yes", "--json")
    assert "run 5 keeps what `hpcrun update` gave: " in done.stderr
    now = {row["run"]: desk.queue()[row["job_id"]] for row in json.loads(done.stdout)}
    assert [(now[run]["time"], now[run]["partition"], now[run]["nice"]) for run in (4, 5)] == [
        ("20:00", "high", "0"),
        ("30:00", "high", "7"),
    ]
