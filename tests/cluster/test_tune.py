"""`hpcrun tune` and `hpcrun scaling` on a real Slurm, as the ordinary user types them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.layout import experiment
from hpcrun.tools.perf.on_nodes import trial_log
from tests.cluster.ward import compile_operators
from tests.cluster.workbench import LANGUAGE_MODEL, Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

pytest.importorskip("deepspeed", reason="trains")
pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).parent / "jobs" / "hungry.py"
MICRO = "deepspeed.train_micro_batch_size_per_gpu"
# A sample's activations take 4 MB: 128 of them more than a node's share, 16 do not.
HUNGRY: dict[str, Any] = {
    "entry": "hungry.py:train",
    "cluster": "bed",
    "config": {"seed": 1, "total_steps": 100, "width": 1 << 16, "fault": None},
    "deepspeed": {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
    "estimate": {"parameters": 8},
    "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00", "mem": 550},
}


def _bench(cluster: Cluster) -> Workbench:
    compile_operators(cluster)
    bench = Workbench(cluster, "tune")
    bench.write("hungry.py", PROGRAM.read_text())
    bench.copy_job("language_model.py")
    return bench


def _tuned(bench: Workbench, name: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """What `hpcrun tune` found, and what it said."""
    done = bench.hpcrun("tune", bench.spec(name, HUNGRY), "--json", *arguments, check=False)
    assert done.returncode == 0, done.stderr + bench.explain(f"{name}-tune")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found, done.stderr


def _assert_one_allocation(bench: Workbench, name: str, nodes: int) -> list[ledger.Attempt]:
    """All attempts of the run were one start of one job, on as many nodes; return them."""
    (run,) = bench.status(name)
    assert (run["state"], len(run["nodes"])) == ("completed", nodes), bench.explain(name)
    job = str(run["job_id"])
    bench.cluster.wait_job(job)
    (start,) = [row for row in bench.cluster.sacct(job) if row["JobID"] == job]
    assert (start["State"], start["NNodes"]) == ("COMPLETED", str(nodes))
    attempts = ledger.read(experiment(bench.root, name).run(0))
    assert {(one.decided or {}).get("action") for one in attempts[:-1]} <= {"restart"}
    return attempts


def test_a_candidate_that_takes_all_memory_is_survived(slurm22: Cluster) -> None:
    bench = _bench(slurm22)
    found, said = _tuned(bench, "hungry", "--space", f"{MICRO}=128,8")
    attempts = _assert_one_allocation(bench, "hungry-tune", nodes=2)
    kinds = [(one.cause or {}).get("kind") for one in attempts]
    assert kinds == ["out_of_memory", None]
    told = {one["label"]: one["status"] for one in found["candidates"]}
    large = told["train_micro_batch_size_per_gpu=128"]
    assert large.startswith("out of memory: rank "), told
    assert "was killed because its job was out of memory" in large
    assert told["train_micro_batch_size_per_gpu=8 (as it is)"] == "fastest"
    assert len(found["best"]["steps"]) == 10
    assert "train_micro_batch_size_per_gpu=8 (as it is): " in said
    # The spec to submit is one: it compiles, and has what was found.
    spec = Path(found["spec"])
    assert spec == bench.directory / "hungry.tuned.yaml"
    plan = json.loads(bench.hpcrun("plan", spec, "--json").stdout)
    assert plan["runs"][0]["spec"]["deepspeed"]["train_micro_batch_size_per_gpu"] == 8


@pytest.mark.usually
def test_what_is_found_among_many_is_submitted(slurm: Cluster) -> None:
    bench = _bench(slurm)
    space = ["--space", f"{MICRO}=128,16,8", "--space", "config.fault=null,error"]
    found, said = _tuned(bench, "many", *space)
    attempts = _assert_one_allocation(bench, "many-tune", nodes=2)
    told = {one["label"]: one["status"] for one in found["candidates"]}
    assert told["train_micro_batch_size_per_gpu=128,fault=null"].startswith("out of memory: ")
    error = "rank crash: NameError: attention is not defined"
    assert told["train_micro_batch_size_per_gpu=8,fault=error"] == error
    failed = sum(one.startswith(("out of memory", "rank crash")) for one in told.values())
    assert len(attempts) == failed + 1
    assert found["best"]["values"]["config.fault"] == "null"
    assert found["best"]["confirmed"]
    assert said.rstrip().endswith("next: hpcrun submit " + str(found["spec"])), said
    done = bench.hpcrun("submit", found["spec"], "config.total_steps=3", "--wait", check=False)
    assert done.returncode == 0, done.stderr + bench.explain("many-tuned")
    assert len(bench.losses("many-tuned", 0)) == 3


def _jobs(cluster: Cluster) -> list[str]:
    return cluster.run(["squeue", "--noheader", "--format=%j %T"]).stdout.split("\n")[:-1]


def _interrupted(bench: Workbench, arguments: Sequence[str | Path], ready: Any) -> tuple[str, str]:
    """What a command prints that is interrupted once something holds."""
    child = bench.cluster.popen(
        [bench.cluster.python, "-m", "hpcrun", *map(str, arguments)],
        env={"HPCRUN_ROOT": str(bench.root)},
        cwd=str(bench.directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(ready, "the moment to interrupt", 120)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=120)
    assert child.returncode == 130, said
    return out, said


@pytest.mark.usually
def test_ctrl_c_leaves_no_job_behind(slurm: Cluster) -> None:
    bench = _bench(slurm)
    command: list[str | Path] = ["tune", bench.spec("left", HUNGRY), "--space", f"{MICRO}=8,4"]
    held = [*command, "+resources.sbatch.begin=now+1hour"]
    _, said = _interrupted(bench, held, lambda: any("PENDING" in one for one in _jobs(slurm)))
    assert "interrupted; nothing is left running; no spec is written" in said
    assert _jobs(slurm) == []
    trials = experiment(bench.root, "left-tune").run(1).trials

    def is_tried() -> bool:
        return any(one.outcome != trial_log.BEGAN for one in trial_log.read(trials))

    out, said = _interrupted(bench, command, is_tried)
    assert "interrupted; nothing is left running; no spec is written" in said
    assert "the fastest so far: train_micro_batch_size_per_gpu=8 (as it is)" in said
    assert "train_micro_batch_size_per_gpu=8 (as it is)" in out
    assert _jobs(slurm) == []
    assert [run["state"] for run in bench.status("left-tune")] == ["cancelled"] * 2
    assert not (bench.directory / "left.tuned.yaml").exists()


@pytest.mark.usually
def test_one_node_is_compared_with_two(slurm: Cluster) -> None:
    bench = _bench(slurm)
    spec = bench.spec("grow", {**LANGUAGE_MODEL, "resources": HUNGRY["resources"]})
    done = bench.hpcrun("scaling", spec, "--nodes", "1,2", "--json", check=False)
    assert done.returncode == 0, done.stderr + bench.explain("grow-scaling")
    found = {(one["kind"], one["nodes"]): one for one in json.loads(done.stdout)["points"]}
    batches = {key: (one["ranks"], one["train_batch_size"]) for key, one in found.items()}
    assert batches == {
        ("strong", 1): (1, 32),
        ("strong", 2): (2, 32),
        ("weak", 1): (1, 16),
        ("weak", 2): (2, 32),
    }
    for one in found.values():
        assert one["problem"] is None
        assert len(one["steps"]) == 20
        assert one["efficiency"] == pytest.approx(one["speed_up"] / one["ranks"])
    assert found["strong", 1]["efficiency"] == found["weak", 1]["efficiency"] == 1.0
    # On the two CPUs that all nodes share, whatever else they do.
    assert 0.05 < found["weak", 2]["efficiency"] < 1.5
    page = (bench.directory / "grow.scaling.html").read_text()
    assert "2 ranks, weak" in page
    for number, nodes in enumerate((1, 2)):
        (run,) = bench.status(f"grow-scaling/{number}")
        assert (run["state"], len(run["nodes"])) == ("completed", nodes)
