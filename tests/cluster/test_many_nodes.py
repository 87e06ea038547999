"""A job of more nodes than have a step of agents each, on a real Slurm of 19 nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.run.job import agent_steps
from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths, experiment
from tests.cluster.test_ends import wait_until_clean
from tests.cluster.workbench import Workbench
from tests.support.made_venv import MadeVenv
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

pytestmark = pytest.mark.timeout(900)

NODES = 18
# Slurm notices later that the node is lost, and would end all steps that have it.
SLURMD_TIMEOUT = 20
WORK = 'trap "exit 0" TERM; for second in $(seq 60); do echo $second; sleep 1; done'


@pytest.mark.parametrize(
    "version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.usually())]
)
def test_a_lost_node_costs_its_group_nothing(
    version: str, make_cluster: Callable[..., Cluster]
) -> None:
    cluster = make_cluster(version, NODES + 1, slurmd_timeout=SLURMD_TIMEOUT)
    bench = Workbench(cluster, "many")
    resources: dict[str, Any] = {"nodes": NODES, "ntasks_per_node": 1, "gpus_per_node": 0}
    resources |= {"spare_nodes": 1, "time": "00:10:00", "sbatch": {"exclusive": True}}
    venv = MadeVenv(bench.directory / "venv")
    venv.package("precise", "1.0")
    venv.give(cluster.uid)
    python = {"python": venv.python, "venv": "frozen"}
    bench.spec("many", {"entry": ["sh", "-c", WORK], "resources": resources, "environment": python})
    bench.hpcrun("submit", "many.yaml", "cluster=bed")
    paths = experiment(bench.root, "many")
    run = paths.run(0)

    def began(attempt: int) -> bool:
        logs = run.attempt(attempt).rank_logs()
        return len(logs) == NODES and all(log.stat().st_size for log in logs.values())

    until(lambda: began(1), timeout=120)
    steps = cluster.run(["squeue", "--steps", "--noheader", "--format=%j"]).stdout.split()
    assert steps.count("hpcrun-agent") <= agent_steps.MOST
    # Whoever has to read it from here in the second attempt ends that.
    [code] = paths.code.iterdir()
    code.unlink()
    dead = ledger.read(run)[0].started["nodes"][4]
    cluster.power_off(dead)
    until(lambda: began(2), timeout=60)
    # Slurm has noticed by now: the agents' step is there still.
    time.sleep(SLURMD_TIMEOUT + 10)
    until(lambda: ledger.intent(run) is not None, timeout=180)
    first, second = ledger.read(run)
    assert ledger.same_start(first, second), bench.explain("many")
    assert ledger.intent(run) == ledger.FINISHED
    assert {*first.started["nodes"]} - {*second.started["nodes"]} == {dead}
    _check_archives(bench, paths)
    wait_until_clean(cluster)


def _check_archives(bench: Workbench, paths: ExperimentPaths) -> None:
    """Check that code and environment came by sbcast, once, and whole to each node."""
    said = "".join(log.read_text() for log in paths.directory.rglob("*.log"))
    said += bench.hpcrun("logs", "many", "--stream", "all").stdout
    for what in ("code", "environment"):
        assert re.search(rf"sbcast sent the frozen {what} .* to {NODES + 1} nodes in", said), said
    assert "from shared storage" not in said, said
