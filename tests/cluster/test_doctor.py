"""`hpcrun doctor` and `doctor --nodes` on a real Slurm: no false alarm, and both bad nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.usually(VERSIONS[0])]

# As often as nodes that are well are tested; only the last time with torch.
HEALTHY = 5 if os.environ.get("HPCRUN_THOROUGH") == "1" else 2
SLOW = "tc qdisc add dev ib0 root tbf rate 50mbit burst 64kbit latency 50ms"


def _doctor(bench: Workbench, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code of `hpcrun doctor --json`, what it found, and what it said."""
    done = bench.hpcrun("doctor", *arguments, "--json", check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def _queued(cluster: Cluster) -> list[str]:
    return cluster.run(["squeue", "--noheader", "--format=%j %T"]).stdout.split("\n")[:-1]


def _left(bench: Workbench) -> list[Path]:
    return [*bench.root.glob(".hpcrun-doctor-*")] if bench.root.exists() else []


def test_a_cluster_and_its_nodes(slurm: Cluster) -> None:
    bench = Workbench(slurm, "doctor")
    _check_the_promises(slurm, bench)
    _check_healthy_nodes(slurm, bench)
    try:
        slurm.on("n2", SLOW.split())
        slurm.link("n3", "ib0", up=False)
        _check_bad_nodes(bench)
    finally:
        slurm.on("n2", ["tc", "qdisc", "del", "dev", "ib0", "root"])
        slurm.link("n3", "ib0", up=True)
    _check_an_interrupt(slurm, bench)
    assert _left(bench) == []
    assert _queued(slurm) == []


def _check_the_promises(slurm: Cluster, bench: Workbench) -> None:
    code, found, said = _doctor(bench)
    assert code == 0, said
    verdicts = {one["name"]: one["verdict"] for one in found["promises"]}
    assert found["slurm"].startswith(slurm.version)
    for name in ("Slurm", "nodes", "requeue", "accounting", "root", "job's Python", "arrays"):
        assert verdicts[name] == "works", found
    assert verdicts["visibility"] == "not known"
    slurm.stop_database_daemon()
    try:
        code, found, _ = _doctor(bench)
    finally:
        slurm.start_database_daemon()
    verdicts = {one["name"]: one["verdict"] for one in found["promises"]}
    assert (code, verdicts["accounting"]) == (0, "works less")


def _check_healthy_nodes(slurm: Cluster, bench: Workbench) -> None:
    for number in range(HEALTHY):
        torch = number == HEALTHY - 1
        more = [] if torch else ["--quick"]
        code, found, said = _doctor(bench, "--nodes", "4", *more)
        assert (code, found["bad"], found["findings"]) == (0, {}, []), said
        assert found["interface"] == "ib0"
        assert sorted(found["nodes"]) == slurm.nodes
        # Each of four nodes has met the three others.
        assert len(found["links"]["rates"]) == 12
        for one in found["nodes"].values():
            assert one["storage"]["is_seen"]
            assert abs(one["clock"]["ahead"]) < 1
            assert one["facts"]["gpus_given"] == 2
            if torch:
                assert one["tensor"][0]["gemm"] > 1e9
        assert "GPUs are not examined" in said
    reduced = found["allreduce"]
    assert (reduced["ranks"], [row["bytes"] for row in reduced["rows"]]) == (
        4,
        [1 << 16, 1 << 20, 1 << 24],
    )
    for row in reduced["rows"]:
        assert row["busbw"] == pytest.approx(row["algbw"] * 1.5)


def _check_bad_nodes(bench: Workbench) -> None:
    """The slow node and the one without a link are named, and nobody else."""
    code, found, said = _doctor(bench, "--nodes", "n[1-4]", "--quick", "--save-baseline")
    assert code == 1, said
    assert found["bad"].keys() == {"n2", "n3"}, found["findings"]
    assert found["bad"]["n2"].startswith("it sends "), found["bad"]
    assert found["bad"]["n3"] == "ib0 has no carrier"
    assert "not kept as the baseline, as not all is well" in said
    assert "suspect for 12 hours: n2, n3" in said
    # The record has them, with the measurement, and all see it.
    _, found, _ = _doctor(bench)
    reasons = {one["node"]: one["reason"] for one in found["suspects"]}
    assert reasons.keys() == {"n2", "n3"}
    assert "MB/s over ib0" in reasons["n2"]
    done = bench.hpcrun("doctor", "--clear", "n2,n3")
    assert done.stdout == "n2 is not suspect any more\nn3 is not suspect any more\n"


def _check_an_interrupt(slurm: Cluster, bench: Workbench) -> None:
    """Ctrl-C in the middle of the test cancels the job; so it does in the queue."""
    for running in (True, False):
        blocker = []
        if not running:
            argv = ["sbatch", "--nodes=4", "--exclusive", "--mem=100", "--wrap=sleep 60"]
            blocker = [slurm.run([*argv, "--parsable"]).stdout.strip()]
            until(lambda: any("RUNNING" in one for one in _queued(slurm)), "nodes are taken")
        child = slurm.popen(
            [slurm.python, "-m", "hpcrun", "doctor", "--nodes", "4", "--quick"],
            env={"HPCRUN_ROOT": str(bench.root)},
            cwd=str(bench.directory),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wanted = "hpcrun-doctor RUNNING" if running else "hpcrun-doctor PENDING"
        until(lambda wanted=wanted: wanted in _queued(slurm), wanted)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        assert child.returncode == 130, said
        assert "was cancelled" in said
        assert not any(one.startswith("hpcrun-doctor") for one in _queued(slurm))
        if blocker:
            slurm.run(["scancel", *blocker])
            slurm.wait_job(blocker[0])
