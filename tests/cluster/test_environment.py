"""Packages of the job's Python that change between two starts of a run, on a real Slurm.

A live environment changes with them, and that is told; a frozen one does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.environment import frozen_environment
from hpcrun.state.layout import RunPaths
from tests.cluster.test_ends import kill_rank, wait_until_clean
from tests.cluster.workbench import Workbench
from tests.support.made_venv import MadeVenv
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.usually("22.05")]

SCRIPT = """
import os, subprocess, sys, time
import precise

tool = subprocess.run(["tool"], capture_output=True, text=True, check=True).stdout.strip()
print(precise.VERSION, tool, sys.prefix, flush=True)
if os.environ["HPCRUN_ATTEMPT"] != "3":
    time.sleep(300)
"""
LINE = "Its Python had other packages than at submission: precise 1.0 -> 1.1."


def test_a_package_that_changes_between_two_starts(slurm: Cluster) -> None:
    bench = Workbench(slurm, "environment")
    venv = MadeVenv(bench.directory / "venv")
    venv.package("precise", "1.0")
    venv.script("tool", "import precise; print(precise.VERSION)\n")
    venv.give(slurm.uid)
    bench.write("train.py", SCRIPT)
    resources = {"nodes": 2, "ntasks_per_node": 1, "time": "00:08:00", "mem": 500}
    runs: dict[str, RunPaths] = {}
    for name in ("live", "frozen"):
        environment = {"python": venv.python, "venv": name}
        spec: dict[str, Any] = {"cluster": "bed", "entry": "train.py", "resources": resources}
        said = bench.hpcrun("submit", bench.spec(name, {**spec, "environment": environment}))
        assert ("environment: froze that of" in said.stderr) is (name == "frozen")
        runs[name] = RunPaths(bench.root / name / "runs" / "0")

    def printed(name: str, attempt: int) -> list[list[str]]:
        found = runs[name].attempt(attempt)
        logs = [found.rank_log(rank) for rank in (0, 1)]
        try:
            until(lambda: all(one.exists() and one.read_text() for one in logs), "ranks", 180)
        except TimeoutError as error:
            raise AssertionError(bench.explain(name)) from error
        return [log.read_text().split() for log in logs]

    assert printed("live", 1) == [["1.0", "1.0", str(venv.directory)]] * 2
    first = printed("frozen", 1)
    assert [words[:2] for words in first] == [["1.0", "1.0"]] * 2
    assert not any(Path(words[2]).is_relative_to(bench.root) for words in first), first
    venv.package("precise", "1.1")
    venv.give(slurm.uid)
    for name in runs:
        (found,) = bench.status(name)
        slurm.run(["scontrol", "requeue", str(found["job_id"])])
    assert printed("live", 2) == [["1.1", "1.1", str(venv.directory)]] * 2
    assert printed("frozen", 2) == first
    for name in runs:
        (found,) = bench.status(name)
        kill_rank(slurm, found["nodes"][1], 1)
    assert [words[:2] for words in printed("live", 3)] == [["1.1", "1.1"]] * 2
    assert printed("frozen", 3) == first
    for name in runs:
        until(lambda: bench.status(name)[0]["state"] == "completed", "the end", pause=0.5)  # noqa: B023
    changes = {
        name: [one.started.get("packages_changed") for one in ledger.read(run)]
        for name, run in runs.items()
    }
    assert changes == {"live": [None, *[["precise 1.0 -> 1.1"]] * 2], "frozen": [None] * 3}
    assert bench.hpcrun("why", "live").stdout.count(LINE) == 2
    assert "packages" not in bench.hpcrun("why", "frozen").stdout
    [kept] = frozen_environment.shared_place(bench.root).iterdir()
    assert {one.started.get("environment") for one in ledger.read(runs["frozen"])} == {kept.name}
    assert kept.stat().st_uid == slurm.uid
    wait_until_clean(slurm)
