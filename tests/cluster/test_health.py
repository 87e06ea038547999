"""Bad nodes at an attempt's start, on a real Slurm: the run starts without them, and others do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from tests.cluster.workbench import LANGUAGE_MODEL, PROFILE, Workbench
from tests.testbed import VERSIONS, Cluster

pytestmark = [pytest.mark.timeout(600), pytest.mark.usually(VERSIONS[0])]

SLOW = "tc qdisc add dev ib0 root tbf rate 50mbit burst 64kbit latency 50ms"
RANK = {"entry": ["python", "-c", "import os; print('rank', os.environ['RANK'])"], "cluster": "bed"}


def _attempts(bench: Workbench, name: str) -> list[ledger.Attempt]:
    return ledger.read(ExperimentPaths(bench.root / name).run(0))


def _resources(nodes: int, **more: Any) -> dict[str, Any]:
    return {"nodes": nodes, "time": "00:05:00", "mem": 1500, **more}


def test_bad_nodes(slurm: Cluster) -> None:
    bench = Workbench(slurm, "health")
    bench.write("configs/clusters/bed.yaml", PROFILE.replace("suspects: {avoid: false}\n", ""))
    bench.copy_job("language_model.py")
    try:
        slurm.on("n2", SLOW.split())
        _check_a_slow_link(bench)
        _check_the_next_submission(bench)
    finally:
        slurm.on("n2", ["tc", "qdisc", "del", "dev", "ib0", "root"])
    bench.hpcrun("doctor", "--clear", "n2")
    try:
        slurm.link("n1", "ib0", up=False)
        _check_a_spare(bench)
    finally:
        slurm.link("n1", "ib0", up=True)


def _check_a_slow_link(bench: Workbench) -> None:
    """A training job on three of four nodes is requeued without the one with 50 Mbit/s."""
    config = {**LANGUAGE_MODEL["config"], "total_steps": 3}
    batch = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4}
    spec = {
        **LANGUAGE_MODEL,
        **{"config": config, "deepspeed": {**LANGUAGE_MODEL["deepspeed"], **batch}},
        # So much for the compiler, where DeepSpeed's operators are not there yet.
        "resources": _resources(3, cpus_per_task=1, mem=6000),
    }
    bench.hpcrun("submit", bench.spec("slowed", spec), "--wait", check=False)
    attempts = _attempts(bench, "slowed")
    assert [one.kind for one in attempts] == ["bad_node", None], bench.explain("slowed")
    first, second = attempts
    assert first.nodes == ["n1", "n2", "n3"]
    assert first.cause["nodes"] == ["n2"]
    assert "node n2: it sends " in first.cause["message"]
    assert first.workers_started is None
    assert (first.action, (first.decided or {})["exclude"]) == ("requeue", ["n2"])
    assert not ledger.same_start(first, second)
    assert (second.nodes, second.outcome) == (["n1", "n3", "n4"], "completed")
    assert len(bench.losses("slowed", 0, attempt=2)) == 3
    why = bench.hpcrun("why", "slowed").stdout
    assert "bad_node: node n2: it sends " in why
    assert "hpcrun requeued it, excluding n2" in why


def _check_the_next_submission(bench: Workbench) -> None:
    (record,) = (bench.root / ".hpcrun" / "suspects").iterdir()
    assert {one["node"] for one in json.loads(record.read_text())} == {"n2"}
    spec = bench.spec("next", {**RANK, "resources": _resources(3)})
    said = bench.hpcrun("submit", spec, "--dry-run").stderr
    assert "suspect node left out: n2: it sends " in said
    assert "suspect" not in bench.hpcrun("submit", spec, "--dry-run", "--no-suspects").stderr
    job = bench.hpcrun("submit", spec, "--wait").stdout.strip()
    shown = bench.cluster.run(["scontrol", "show", "job", job]).stdout
    assert "ExcNodeList=n2" in shown
    assert "NodeList=n[1,3-4]" in shown
    shown = bench.hpcrun("show", "next", "--json").stdout
    assert json.loads(shown)["suspects"][0].startswith("n2: it sends ")


def _check_a_spare(bench: Workbench) -> None:
    """A node whose ib0 is down is replaced in its allocation."""
    spec = {**RANK, "resources": _resources(2, spare_nodes=1)}
    bench.hpcrun("submit", bench.spec("spared", spec), "--wait", check=False)
    attempts = _attempts(bench, "spared")
    assert [one.kind for one in attempts] == ["bad_node", None], bench.explain("spared")
    first, second = attempts
    assert first.cause["nodes"] == ["n1"]
    assert first.cause["message"] == "node n1: its ib0 is down, and that of n2 is up"
    assert first.action == "restart"
    assert ledger.same_start(first, second)
    assert (second.nodes, second.outcome) == (["n2", "n3"], "completed")
    assert second.health is None


@pytest.mark.usually
def test_storage_that_one_node_does_not_see(slurm: Cluster) -> None:
    """No node is left out for it before it was seen twice in a row, and none is suspect."""
    bench = Workbench(slurm, "unseen")
    bench.root.mkdir(parents=True, exist_ok=True)
    spec = bench.spec("unseen", {**RANK, "resources": _resources(3)})
    slurm.on("n2", ["mount", "-t", "tmpfs", "tmpfs", str(bench.root)])
    try:
        bench.hpcrun("submit", spec, "--wait", check=False)
    finally:
        slurm.on("n2", ["umount", str(bench.root)])
    attempts = _attempts(bench, "unseen")
    assert [one.kind for one in attempts] == ["storage", "storage", None], bench.explain("unseen")
    assert [one.cause.get("nodes") for one in attempts[:2]] == [["n2"], ["n2"]]
    assert [(one.decided or {})["exclude"] for one in attempts[:2]] == [[], ["n2"]]
    assert (attempts[2].nodes, attempts[2].outcome) == (["n1", "n3", "n4"], "completed")
    for record in (bench.root / ".hpcrun").glob("suspects/*"):
        assert "n2" not in record.read_text()
    why = bench.hpcrun("why", "unseen").stdout
    assert "storage: the agent on node n2 ended with exit code" in why
    assert "hpcrun requeued it, excluding n2" in why
