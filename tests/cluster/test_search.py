"""A search on a real Slurm, with what happens to its runs meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.state import chosen_point, files
from tests.cluster.ward import PROGRAM, Ward
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(600)

TRIALS = 12
TRAIN = """\
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--kind")
given = parser.parse_args()
try:
    begun = json.load(open("state.json"))["step"]
except OSError:
    begun = 0
for step in range(begun + 1, 9):
    time.sleep(1)
    json.dump({"step": step}, open("state.new", "w"))
    os.replace("state.new", "state.json")
    print(f"step {step} loss {(given.x - 0.3) ** 2 + (given.kind == 'b') + 1 / step}", flush=True)
"""
SPEC: dict[str, Any] = {
    "entry": "train.py",
    "cluster": "bed",
    "objective": {"metric": "loss"},
    "progress": {"pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
    "config": {"x": 0.5, "kind": "a"},
    "resources": {"nodes": 1, "ntasks_per_node": 1, "mem": 500, "time": "00:10:00"},
    "recovery": {"resume": {"when": "state.json"}},
    "sweep": {
        "search": {
            "space": {"x": {"uniform": [0, 1]}, "kind": ["a", "b"]},
            "trials": TRIALS,
            "parallel": 4,
        }
    },
}


@pytest.mark.usually("22.05")
def test_trials_that_share_a_job_follow_one_another(slurm: Cluster) -> None:
    """The next trial begins in the place of one that is over."""
    ward = Ward(slurm, "search")
    ward.write("train.py", TRAIN)
    resources = {**SPEC["resources"], "pack": {"runs_per_node": 4}}
    ward.hpcrun("submit", ward.spec("together", {**SPEC, "resources": resources}))
    ward.wait_for_end("together", seconds=200)
    found = ward.status("together")
    assert len({one["job_id"] for one in found}) == 1
    begun = [ward.attempts(f"together/{number}")[0].began or 0.0 for number in range(TRIALS)]
    assert max(begun) - min(begun) > 12
    points = [chosen_point.read(ward.paths(f"together/{number}")) for number in range(TRIALS)]
    assert len({json.dumps(one.swept) for one in points if one is not None}) == TRIALS


@pytest.mark.usually("24.11")
def test_no_trial_is_lost_or_told_twice(slurm: Cluster) -> None:
    """A rank, a supervisor, a node and slurmctld are ended; nothing of it lives anywhere else."""
    ward = Ward(slurm, "search")
    ward.write("train.py", TRAIN)
    ward.hpcrun("submit", ward.spec("search", SPEC))
    for number in range(3):
        until(lambda number=number: ward.attempts(f"search/{number}"), "it starts", 60)
        ward.wait_for_step(f"search/{number}", 2)
    (found,) = ward.status("search/0")
    job = ward.raw_job_id(str(found["job_id"]))
    slurm.stop_controller()
    ward.hurt_ranks(found["nodes"][0], job)
    slurm.start_controller()
    (found,) = ward.status("search/1")
    ward.kill(found["nodes"][0], f"{PROGRAM}supervisor", ward.raw_job_id(str(found["job_id"])))
    (found,) = ward.status("search/2")
    slurm.power_off(found["nodes"][0])
    until(lambda: len(ward.attempts("search/2")) > 1 or _is_over(ward, 2), "its next start", 240)
    slurm.boot(found["nodes"][0])
    ward.wait_for_end("search", seconds=300)
    points = [chosen_point.read(ward.paths(f"search/{number}")) for number in range(TRIALS)]
    assert len({json.dumps(one.swept) for one in points if one is not None}) == TRIALS
    rows = json.loads(ward.hpcrun("results", "search", "--json").stdout)
    for number, (row, point) in enumerate(zip(rows, points, strict=True)):
        assert point is not None
        x, kind = point.swept["config.x"], point.swept["config.kind"]
        assert row["loss.best"] == pytest.approx((x - 0.3) ** 2 + (kind == "b") + 1 / 8)
        # All attempts of a run had the same values.
        for attempt in ward.attempts(f"search/{number}"):
            launch = ward.paths(f"search/{number}").attempt(attempt.number).launch
            if launch.exists():
                assert files.read_json(launch)["spec"]["config"] == {"x": x, "kind": kind}
        if number > 2:
            ward.assert_reconciled(f"search/{number}")
    assert [len(ward.kinds(f"search/{number}")) > 1 for number in range(3)] == [True] * 3
    # The search goes on, from another shell.
    ward.hpcrun("submit", ward.spec("search", SPEC), f"sweep.search.trials={TRIALS + 2}")
    ward.wait_for_end("search", seconds=120)
    assert len(ward.status("search")) == TRIALS + 2


def _is_over(ward: Ward, number: int) -> bool:
    return bool(ward.status(f"search/{number}")[0]["state"] == "completed")
