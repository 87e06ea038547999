"""A search on a real Slurm, with what happens to its runs meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
import pytest

from hpcrun.compile.sweep import optuna_space
from hpcrun.features.point_search import study
from hpcrun.state import chosen_point, files, plan_file
from hpcrun.state.plan import SEARCH
from tests.cluster.ward import PROGRAM, Ward
from tests.support.waiting import until
from tests.testbed import Cluster
from tests.testbed.layout import LOGIN

# HPCRUN_THOROUGH=1 has more trials, and hurts them until the last.
IS_THOROUGH = os.environ.get("HPCRUN_THOROUGH") == "1"
pytestmark = pytest.mark.timeout(1800 if IS_THOROUGH else 600)

TRIALS, PARALLEL = (40, 6) if IS_THOROUGH else (12, 4)
STEPS = 20 if IS_THOROUGH else 8
# Ridge regression by gradient descent, of which the state is saved at each step.
MODEL = """\
import random

def train(state, x, kind):
    "Do a step; return the loss on held-out samples."
    draw = random.Random(0)
    rows = [[1.0] + [draw.gauss(0, 1) for _ in range(5)] for _ in range(60)]
    target = [sum(row) + draw.gauss(0, 0.5) for row in rows]
    momentum = 0.5 if kind == "b" else 0.0
    weights, velocity = state
    errors = [sum(map(float.__mul__, weights, row)) - y for row, y in zip(rows, target)]
    for i in range(6):
        slope = sum(row[i] * error for row, error in zip(rows[:40], errors)) / 40
        velocity[i] = momentum * velocity[i] - x * (slope + 0.01 * weights[i])
        weights[i] += velocity[i]
    return sum(error * error for error in errors[40:]) / 20
"""
TRAIN = """\
import argparse, json, os, time
from model import STEPS, train
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--kind")
given = parser.parse_args()
try:
    begun, state = json.load(open("state.json"))
except OSError:
    begun, state = 0, ([0.0] * 6, [0.0] * 6)
for step in range(begun + 1, STEPS + 1):
    time.sleep(1)
    loss = train(state, given.x, given.kind)
    json.dump([step, state], open("state.new", "w"))
    os.replace("state.new", "state.json")
    print(f"step {step} loss {loss!r}", flush=True)
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
            "parallel": PARALLEL,
        }
    },
}


@pytest.mark.usually("22.05")
def test_trials_that_share_a_job_follow_one_another(slurm: Cluster) -> None:
    """The next trial begins in the place of one that is over."""
    ward = Ward(slurm, "search")
    ward.write("train.py", TRAIN)
    ward.write("model.py", f"STEPS = {STEPS}\n{MODEL}")
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
    """A rank, a supervisor, a node and slurmctld are ended; nothing of it lives anywhere else.

    The first node's clock is 30 s ahead (`tests.cluster.conftest`), and caches of storage are late.
    """
    ward = Ward(slurm, "search")
    ward.write("train.py", TRAIN)
    ward.write("model.py", f"STEPS = {STEPS}\n{MODEL}")
    ward.hpcrun("submit", ward.spec("search", SPEC))
    slurm.kill_user_processes(LOGIN)
    for number in range(3):
        until(partial(ward.attempts, f"search/{number}"), "it starts", 60)
        ward.wait_for_step(f"search/{number}", 2)
    (found,) = ward.status("search/0")
    job = ward.raw_job_id(str(found["job_id"]))
    slurm.stop_controller()
    ward.hurt_ranks(found["nodes"][0], job)
    slurm.start_controller()
    (found,) = ward.status("search/1")
    ward.kill(found["nodes"][0], f"{PROGRAM}supervisor", ward.raw_job_id(str(found["job_id"])))
    (found,) = ward.status("search/2")
    # One that has just completed there is lost with the node for accounting.
    there = {one["run"] for one in ward.status("search") if found["nodes"] == one["nodes"]}
    slurm.power_off(found["nodes"][0])
    # Accounting may lose steps that begin or end without slurmctld.
    hurt = {*range(PARALLEL if IS_THOROUGH else 3)} | there
    hurt |= _wait(ward, lambda: len(ward.attempts("search/2")) > 1 or _is_over(ward, 2))
    slurm.boot(found["nodes"][0])
    hurt |= _wait(ward, lambda: _all_are_over(ward)) if IS_THOROUGH else set()
    ward.wait_for_end("search", seconds=300)
    points = [chosen_point.read(ward.paths(f"search/{number}")) for number in range(TRIALS)]
    assert len({json.dumps(one.swept) for one in points if one is not None}) == TRIALS
    rows = json.loads(ward.hpcrun("results", "search", "--json").stdout)
    for number, (row, point) in enumerate(zip(rows, points, strict=True)):
        assert point is not None
        x, kind = point.swept["config.x"], point.swept["config.kind"]
        assert row["loss.best"] == min(_losses(x, kind))
        # All attempts of a run had the same values.
        for attempt in ward.attempts(f"search/{number}"):
            launch = ward.paths(f"search/{number}").attempt(attempt.number).launch
            if launch.exists():
                assert files.read_json(launch)["spec"]["config"] == {"x": x, "kind": kind}
        if number not in hurt:
            ward.assert_reconciled(f"search/{number}")
    assert [len(ward.kinds(f"search/{number}")) > 1 for number in range(3)] == [True] * 3
    _assert_told_once(ward, rows)
    argv = ["sacct", "--noheader", "--allocations", "--name=search", "--format=JobID"]
    jobs = Counter(slurm.run(argv).stdout.split())
    assert jobs == Counter(str(one["job_id"]) for one in ward.status("search"))
    assert set(jobs.values()) == {1}
    # The search goes on, from another shell.
    ward.hpcrun("submit", ward.spec("search", SPEC), f"sweep.search.trials={TRIALS + 2}")
    ward.wait_for_end("search", seconds=120)
    assert len(ward.status("search")) == TRIALS + 2


def _wait(ward: Ward, holds: Callable[[], bool]) -> set[int]:
    """Wait until something holds; return the runs that were hurt meanwhile, of a thorough test.

    Now and then a rank or a supervisor of any run is killed, or slurmctld is away for a while,
    which hurts all that run. Runs that were meant twice are left alone: recovery has its limits.
    """
    if not IS_THOROUGH:
        until(holds, "its next start", 240)
        return set()
    draw, meant = random.Random(len(ward.attempts("search/2"))), Counter[int]()
    hurt: set[int] = set()
    deadline = time.monotonic() + 900
    while not holds() and time.monotonic() < deadline:
        time.sleep(draw.uniform(1, 6))
        running = [one for one in ward.status("search") if one["state"] == "running"]
        runs = [one for one in running if one["step"] and meant[one["run"]] < 2]
        if not runs:
            continue
        one = draw.choice(runs)
        node, job = one["nodes"][0], ""
        # It may have ended meanwhile.
        with contextlib.suppress(subprocess.CalledProcessError):
            job = ward.raw_job_id(str(one["job_id"]))
        fault = draw.choice(["rank", "rank", "supervisor", "supervisor", "slurmctld"])
        if not job or not ward.cluster.is_on(node):
            continue
        print(f"{fault}: search/{one['run']} at step {one['step']}")
        meant[one["run"]] += 1
        hurt |= {one["run"]}
        if fault == "slurmctld":
            ward.cluster.stop_controller()
        if fault == "supervisor":
            ward.kill(node, f"{PROGRAM}supervisor", job)
        else:
            ward.hurt_ranks(node, job)
        if fault == "slurmctld":
            time.sleep(draw.uniform(1, 10))
            ward.cluster.start_controller()
            found = [one for one in ward.status("search") if one["attempt"]]
            hurt |= {one["run"] for one in found if one["state"] not in ("completed", "pruned")}
            hurt |= {one["run"] for one in running}
    return hurt


def _all_are_over(ward: Ward) -> bool:
    return all(one["state"] == "completed" for one in ward.status("search"))


def _losses(x: float, kind: str) -> list[float]:
    """What a run logs that nothing happens to."""
    model: dict[str, Any] = {}
    exec(MODEL, model)  # noqa: S102 - this test's own program
    state = [0.0] * 6, [0.0] * 6
    return [model["train"](state, x, kind) for _ in range(STEPS)]


def _assert_told_once(ward: Ward, rows: list[dict[str, Any]]) -> None:
    """The study, rebuilt from its record, has each trial once and the best value of the results."""
    experiment = ward.paths("search/0").experiment
    plan = plan_file.read(experiment.submission(1).plan)
    frozen = plan.run(0).spec[SEARCH]["space"]
    space = {key: optuna_space.distribution(form) for key, form in frozen.items()}
    told = optuna.create_study()
    told.add_trials([*study._trials(plan.runs, experiment, space)])
    assert [one.state.name for one in told.trials] == ["COMPLETE"] * TRIALS
    assert [one.value for one in told.trials] == [row["loss.best"] for row in rows]
    assert told.best_value == min(row["loss.best"] for row in rows)


def _is_over(ward: Ward, number: int) -> bool:
    return bool(ward.status(f"search/{number}")[0]["state"] == "completed")
