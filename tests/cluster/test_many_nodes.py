"""A job of more nodes than have a step of agents each, on a real Slurm of 19 nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.run.job import agent_steps
from hpcrun.state import ledger
from hpcrun.state.layout import experiment
from tests.cluster.workbench import Workbench
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
    python = {"python": cluster.python}
    bench.spec("many", {"entry": ["sh", "-c", WORK], "resources": resources, "environment": python})
    bench.hpcrun("submit", "many.yaml", "cluster=bed")
    run = experiment(bench.root, "many").run(0)

    def began(attempt: int) -> bool:
        logs = run.attempt(attempt).rank_logs()
        return len(logs) == NODES and all(log.stat().st_size for log in logs.values())

    until(lambda: began(1), timeout=120)
    steps = cluster.run(["squeue", "--steps", "--noheader", "--format=%j"]).stdout.split()
    assert steps.count("hpcrun-agent") <= agent_steps.MOST
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
