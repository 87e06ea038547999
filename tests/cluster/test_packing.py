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
    assert [len(ward.attempts(f"packed/{number}")) for number in (2, 3, 4, 5, 8)] == [1] * 5
    job = str(waiting["job_id"])
    # Accounting hears of it later.
    until(lambda: jobs_of(slurm, "packed") == {job: "FAILED"}, "the job's one account", 60)
    ward.hpcrun("submit", ward.spec("packed", SPEC), "config.steps=20", "--only", "x=0 or x=9")
    ward.wait_for_end("packed/0", "completed", seconds=120)
    ward.wait_for_end("packed/9", "completed", seconds=120)
    assert len(jobs_of(slurm, "packed")) == 2


@pytest.mark.usually("22.05")
def test_what_is_unfinished_is_requeued_with_the_job(slurm: Cluster) -> None:
    """A node that hosts runs loses its power; what had completed is not started again."""
    ward = Ward(slurm, "packing")
    ward.write("train.py", TRAIN)
    resources = {**SPEC["resources"], "time": "00:02:00"}
    sweep = {"grid": {"config.x": [0, 1, 2, 3, 4, 5]}, "max_parallel": 4}
    spec = {**SPEC, "resources": resources, "sweep": sweep, "config": {"x": 0, "steps": 25}}
    ward.hpcrun("submit", ward.spec("lost", spec))
    for number in range(4):
        ward.wait_for_step(f"lost/{number}", 2)
    ward.wait_for_end("lost/0", "completed", seconds=120)
    ward.wait_for_step("lost/4", 2)
    (running,) = ward.status("lost/4")
    slurm.power_off(running["nodes"][0])
    until(lambda: len(ward.attempts("lost/4")) > 1, "its next start", 240)
    slurm.boot(running["nodes"][0])
    ward.wait_for_end("lost", "completed", seconds=300)
    assert len(ward.attempts("lost/0")) == 1
    assert all(len(ward.attempts(f"lost/{number}")) <= 3 for number in range(6))


@pytest.mark.usually("24.11")
def test_sessions_of_a_job_that_is_preempted_go_on(slurm: Cluster, reference: Reference) -> None:
    """Of three packed DeepSpeed runs of two ranks one loses a rank, then the job its nodes."""
    ward = reference.ward
    resources = {"nodes": 1, "ntasks_per_node": 2, "pack": {"runs_per_node": 2}}
    ward.submit(
        "shared",
        resources={**resources, "partition": "main"},
        sweep={"grid": {"config.pause": [0.35, 0.36, 0.37]}, "max_parallel": 2},
    )
    (run, _) = ward.wait_for_step(["shared/0", "shared/1"], 12)
    ward.kill(run["nodes"][0], f"{PROGRAM}worker .*runs/0/.* --rank 1")
    until(lambda: len(ward.attempts("shared/0")) > 1, "its restart", 60)
    ward.wait_for_step(["shared/0", "shared/1"], 18)
    ward.preempt(run["nodes"])
    ward.wait_for_end("shared", seconds=300)
    for number in range(3):
        reference.assert_same(f"shared/{number}")
    first, *others = (ward.kinds(f"shared/{number}") for number in range(3))
    assert first == ["rank_crash", "preempted", None]
    # Whether the others ran as the nodes were taken is a matter of seconds.
    assert all(kinds in ([None], ["preempted", None]) for kinds in others)
    assert [*jobs_of(slurm, "shared")] == [str(run["job_id"])]
