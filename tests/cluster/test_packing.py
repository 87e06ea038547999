"""Runs that share a job on a real Slurm, and what happens to some of them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.ward import PROGRAM, Reference, Ward
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(600)

TRAIN = """\
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--steps", type=int)
given = parser.parse_args()
print("seat", os.environ["CUDA_VISIBLE_DEVICES"], os.environ["SLURM_JOB_NODELIST"], flush=True)
try:
    begun = json.load(open("state.json"))["step"]
except OSError:
    begun = 0
state = begun
for step in range(begun + 1, given.steps + 1):
    time.sleep(1)
    if given.x == 7 and step == 3:
        sys.exit(3)
    json.dump({"step": step}, open("state.new", "w"))
    os.replace("state.new", "state.json")
    print(f"step {step} loss {given.x / step}", flush=True)
    if given.x == 6 and step == 3:
        taken = bytearray(os.urandom(1 << 20) * 700)
"""
# The ranks of a run meet in each step.
TOGETHER = """\
import argparse, json, os, time
import torch
from torch import distributed
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--steps", type=int)
given = parser.parse_args()
print("part", os.environ["SLURM_JOB_NODELIST"], flush=True)
distributed.init_process_group("gloo")
try:
    begun = json.load(open("state.json"))["step"]
except OSError:
    begun = 0
for step in range(begun + 1, given.steps + 1):
    time.sleep(0.5)
    ranks = torch.ones(1)
    distributed.all_reduce(ranks)
    if distributed.get_rank() == 0:
        json.dump({"step": step}, open("state.new", "w"))
        os.replace("state.new", "state.json")
        print(f"step {step} loss {ranks.item() / step}", flush=True)
"""
SPEC: dict[str, Any] = {
    "entry": "train.py",
    "cluster": "bed",
    "objective": {"metric": "loss"},
    "progress": {"pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
    "config": {"x": 0, "steps": 20},
    "resources": {
        "gpus_per_node": 1,
        "cpus_per_task": 1,
        "mem": "500M",
        "time": "00:10:00",
        "pack": {"runs_per_node": 2, "nodes_per_job": 2},
    },
    "recovery": {"resume": {"when": "state.json"}, "budgets": {"out_of_memory": 1}},
    "sweep": {"grid": {"config.x": [*range(10)]}, "max_parallel": 4},
}


def jobs_of(slurm: Cluster, name: str) -> dict[str, str]:
    """Slurm's jobs of a name, without steps -> their states."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}"]
    lines = slurm.run([*argv, "--format=JobID,State"]).stdout.split()
    return dict(line.split("|") for line in lines)


def kill_supervisor(ward: Ward, run: str) -> None:
    """Kill the supervisor of one run of a job that several share."""
    (found,) = ward.status(run)
    number = run.rpartition("/")[2]
    ward.kill(found["nodes"][0], f"{PROGRAM}supervisor .* --run {number} $")


@pytest.mark.usually("24.11")
def test_what_ends_one_run_touches_no_other(slurm: Cluster) -> None:
    """Of ten runs on two nodes one fails, one runs out of memory, two are cancelled, one is hurt.

    Then those that did not complete are submitted again, in a job of their own.
    """
    ward = Ward(slurm, "packing")
    ward.write("train.py", TRAIN)
    ward.hpcrun("submit", ward.spec("packed", SPEC))
    for number in range(4):
        ward.wait_for_step(f"packed/{number}", 2)
    (waiting,) = ward.status("packed/5")
    assert (waiting["state"], waiting["job_id"]) == (
        "waiting",
        ward.status("packed/0")[0]["job_id"],
    )
    logs = [ward.paths(f"packed/{number}").attempt(1).rank_log(0) for number in range(4)]
    assert len({log.read_text().splitlines()[0] for log in logs}) == 4
    ward.hpcrun("cancel", "packed/0", "--yes")
    ward.hpcrun("cancel", "packed/9", "--yes")
    assert ward.status("packed/9")[0]["state"] == "cancelled"
    kill_supervisor(ward, "packed/1")
    over = {"completed", "failed", "cancelled"}
    ended = ward.wait("packed", lambda found: all(one["state"] in over for one in found), 300)
    found = {one["run"]: one for one in ended}
    assert {number: one["state"] for number, one in found.items()} == {
        **dict.fromkeys((1, 2, 3, 4, 5, 8), "completed"),
        **dict.fromkeys((0, 9), "cancelled"),
        **dict.fromkeys((6, 7), "failed"),
    }
    assert found[6]["cause"]["kind"] == "out_of_memory"
    assert "the run asked for 500M" in found[6]["cause"]["message"]
    assert len(ward.attempts("packed/1")) == 2
    several = [one for one in (2, 3, 4, 5, 8) if len(ward.attempts(f"packed/{one}")) != 1]
    assert not several, ward.explain(f"packed/{several[0]}")
    job = str(waiting["job_id"])
    # Accounting hears of it later.
    until(lambda: jobs_of(slurm, "packed") == {job: "FAILED"}, "the job's one account", 60)
    ward.hpcrun("submit", ward.spec("packed", SPEC), "config.steps=20", "--only", "x=0 or x=9")
    ward.wait_for_end("packed/0", "completed", seconds=120)
    ward.wait_for_end("packed/9", "completed", seconds=120)
    assert len(jobs_of(slurm, "packed")) == 2


@pytest.mark.usually("24.11")
def test_runs_of_several_nodes_share_a_job(slurm: Cluster) -> None:
    """A rank is killed, a run cancelled, a supervisor killed, and a node lost, each of one run."""
    ward = Ward(slurm, "packing")
    ward.write("train.py", TOGETHER)
    resources = {"nodes": 2, "cpus_per_task": 1, "mem": "900M", "time": "00:10:00"}
    resources["pack"] = {"nodes_per_job": 4}
    sweep = {"grid": {"config.x": [0, 1, 2, 3]}, "max_parallel": 2}
    spec = {**SPEC, "resources": resources, "sweep": sweep, "config": {"x": 0, "steps": 40}}
    ward.hpcrun("submit", ward.spec("pairs", spec))
    first, second = ward.wait_for_step(["pairs/0", "pairs/1"], 2)
    assert {*first["nodes"]}.isdisjoint(second["nodes"])
    log = ward.paths("pairs/1").attempt(1).rank_log(1)
    part = f"part {','.join(second['nodes'])}\n"
    until(lambda: log.read_text().startswith(part), "what a program sees of the job", 30)
    ward.kill(first["nodes"][1], f"{PROGRAM}worker .*runs/0/")
    ward.hpcrun("cancel", "pairs/1", "--yes")
    (third,) = ward.wait_for_step("pairs/2", 2)
    assert third["nodes"] == second["nodes"]
    kill_supervisor(ward, "pairs/2")
    until(lambda: len(ward.attempts("pairs/3")) > 0, "the next run", 60)
    (fourth,) = ward.wait_for_step("pairs/3", 2)
    assert fourth["nodes"] == second["nodes"]
    slurm.power_off(fourth["nodes"][1])
    ward.wait_for_end(["pairs/0", "pairs/2", "pairs/3"], "completed", seconds=240)
    slurm.boot(fourth["nodes"][1])
    assert ward.kinds("pairs/0") == ["rank_crash", None]
    assert ward.kinds("pairs/1") == ["cancelled"]
    assert ward.kinds("pairs/2") == ["supervisor_lost", None]
    assert ward.kinds("pairs/3") == ["node_failure", None]
    assert ward.attempts("pairs/3")[-1].started["nodes"] == first["nodes"]
    starts = [one.started for one in ward.attempts("pairs/3")]
    assert [one["restart_count"] for one in starts] == [0, 0]


@pytest.mark.usually
def test_a_lost_node_costs_the_runs_of_others_nothing(slurm: Cluster) -> None:
    """Of two nodes with two runs each, the second is lost. What had run there goes on.

    On 22.05 that waits for a requeue of the job, since Slurm gives no place of it back.
    """
    ward, nodes = _four_on_two_nodes(slurm, "lost")
    (lost,) = {node for node in nodes if node != min(nodes)}
    hurt = [number for number in range(4) if nodes[number] == lost]
    slurm.power_off(lost)
    ward.wait_for_end("lost", "completed", seconds=300)
    slurm.boot(lost)
    kinds = [ward.kinds(f"lost/{number}") for number in range(6)]
    assert kinds == [["node_failure", None] if number in hurt else [None] for number in range(6)]
    starts = {one.started["restart_count"] for one in ward.attempts(f"lost/{hurt[0]}")}
    assert starts == ({0, 1} if slurm.version == "22.05" else {0})


@pytest.mark.usually("22.05")
def test_without_its_batch_host_the_job_is_requeued(slurm: Cluster) -> None:
    """Of two nodes with two runs each, the first is lost, and with it who led the job."""
    ward, nodes = _four_on_two_nodes(slurm, "headless")
    lost = min(nodes)
    (job,) = {one["job_id"] for one in ward.status("headless")}
    slurm.power_off(lost)
    argv = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    until(lambda: slurm.run(argv).stdout.strip() == "PENDING", "the requeue", 200)
    slurm.boot(lost)
    ward.wait_for_end("headless", "completed", seconds=300)
    for number, node in enumerate(nodes):
        assert ward.kinds(f"headless/{number}") in (
            [["node_failure", None]] if node == lost else [["requeued", None], [None]]
        )


def _four_on_two_nodes(slurm: Cluster, name: str) -> tuple[Ward, list[str]]:
    """Submit six runs, of which four run at once, on two nodes; return the nodes of these."""
    ward = Ward(slurm, "packing")
    ward.write("train.py", TRAIN)
    sweep = {"grid": {"config.x": [0, 1, 2, 3, 4, 5]}, "max_parallel": 4}
    ward.hpcrun(
        "submit", ward.spec(name, {**SPEC, "sweep": sweep, "config": {"x": 0, "steps": 25}})
    )
    found = ward.wait_for_step([f"{name}/{number}" for number in range(4)], 2)
    return ward, [one["nodes"][0] for one in found]


@pytest.mark.parametrize(
    ("nodes", "resources"),
    [
        pytest.param(
            1,
            {"ntasks_per_node": 2, "pack": {"runs_per_node": 2}},
            marks=pytest.mark.usually("24.11"),
        ),
        pytest.param(2, {"pack": {"nodes_per_job": 4}}, marks=pytest.mark.usually),
    ],
)
def test_sessions_of_a_job_that_is_preempted_go_on(
    slurm: Cluster, reference: Reference, nodes: int, resources: dict[str, Any]
) -> None:
    """Of three packed DeepSpeed runs of two ranks one loses a rank, then the job its nodes."""
    ward, name = reference.ward, f"shared-{nodes}"
    ward.submit(
        name,
        resources={"nodes": nodes, **resources, "partition": "main"},
        sweep={"grid": {"config.pause": [0.35, 0.36, 0.37]}, "max_parallel": 2},
    )
    (run, _) = ward.wait_for_step([f"{name}/0", f"{name}/1"], 12)
    rank = " --rank 1" if nodes == 1 else ""
    ward.kill(run["nodes"][-1], f"{PROGRAM}worker .*runs/0/.*{rank}")
    until(lambda: len(ward.attempts(f"{name}/0")) > 1, "its restart", 60)
    ward.wait_for_step([f"{name}/0", f"{name}/1"], 18)
    ward.preempt(run["nodes"])
    ward.wait_for_end(name, seconds=300)
    for number in range(3):
        reference.assert_same(f"{name}/{number}")
    first, *others = (ward.kinds(f"{name}/{number}") for number in range(3))
    assert first == ["rank_crash", "preempted", None]
    # Whether the others ran as the nodes were taken is a matter of seconds.
    assert all(kinds in ([None], ["preempted", None]) for kinds in others)
    assert [*jobs_of(slurm, name)] == [str(run["job_id"])]
