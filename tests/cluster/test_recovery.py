"""Runs that are stopped on a real Slurm, after a warning, and come back by themselves.

Each of them must end with the same weights, to the bit, and the same loss at every step as a run
of the same spec that nothing happened to.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.ward import BY_STAGE, EVERY, STAGES, Reference
from tests.testbed.daemons import until

pytestmark = pytest.mark.timeout(900)


def test_elements_of_an_array_that_are_hurt_in_different_ways(reference: Reference) -> None:
    """Killed rank, requeue by hand, killed supervisor, signal by hand: one each, siblings apart."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("storm", sweep=BY_STAGE)
    raw: dict[int, str] = {}
    nodes: dict[int, list[str]] = {}

    def hurt(runs: list[dict[str, Any]]) -> bool:
        for run in runs:
            number, job = run["run"], str(run["job_id"])
            if number in raw or (run["step"] or 0) < 12:
                continue
            raw[number], nodes[number] = ward.raw_job_id(job), run["nodes"]
            if number == 0:
                ward.kill(run["nodes"][1], "hpcrun.run.worke[r]", raw[number])
            elif number == 1:
                slurm.run(["scontrol", "requeue", job])
            elif number == 2:
                ward.kill(run["nodes"][0], "hpcrun.run.superviso[r]", raw[number])
            else:
                slurm.run(["scancel", "--signal=USR2", job])
        return len(raw) == 4

    first = ward.wait("storm", hurt)[0]
    assert str(first["job_id"]).partition("_")[0] in raw.values(), "one has the array's own id"
    ended = ward.wait_for_end("storm")
    assert [run["state"] for run in ended] == ["completed"] * 4, ward.explain("storm")
    assert [ward.kinds("storm", run) for run in range(4)] == [
        ["rank_crash", None],
        ["requeued", None],
        ["supervisor_lost", None],
        ["signal", None],
    ]
    crash = ward.attempts("storm", 0)[0].cause
    assert crash is not None
    assert (crash["rank"], crash["node"], crash["signal"]) == (1, nodes[0][1], "SIGKILL")
    for run in range(4):
        reference.assert_same("storm", run, STAGES[run])
        ward.assert_reconciled("storm", run, str(ended[run]["job_id"]))
    lost = [ward.lost_steps("storm", run) for run in range(4)]
    assert lost[1] == lost[3] == [0]
    assert 0 <= lost[0][0] <= EVERY
    assert 0 <= lost[2][0] <= EVERY


@pytest.mark.parametrize(
    ("partition", "stage"),
    [
        pytest.param("main", 2, marks=pytest.mark.usually("24.11")),
        pytest.param("cancel", 3, marks=pytest.mark.usually("22.05")),
        pytest.param("abrupt", 0, marks=pytest.mark.usually),
        pytest.param("abrupt-cancel", 1, marks=pytest.mark.usually("24.11")),
    ],
)
def test_preempted(reference: Reference, partition: str, stage: int) -> None:
    """Under PreemptMode REQUEUE and CANCEL, with a grace and without one."""
    ward = reference.ward
    name = f"preempted-{partition}"
    ward.submit(
        name,
        resources={"partition": partition},
        deepspeed={"zero_optimization": {"stage": stage}},
    )
    (run,) = ward.wait_for_step(name, 12)
    ward.preempt(run["nodes"])
    (ended,) = ward.wait_for_end(name)
    assert ended["state"] == "completed", ward.explain(name)
    assert ward.kinds(name) == ["preempted", None]
    assert ward.lost_steps(name) == [0]
    reference.assert_same(name, 0, stage)
    ward.assert_reconciled(name, 0, str(ended["job_id"]))


@pytest.mark.usually
def test_preempted_three_times_while_it_starts(reference: Reference) -> None:
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("early", resources={"sbatch": {"nodelist": "n1,n2"}})
    for attempt in (1, 2, 3):
        ward.wait("early", lambda runs, n=attempt: runs[0]["attempt"] == n)
        slurm.wait_job(ward.preempt(["n1", "n2"], 1))
    (ended,) = ward.wait_for_end("early")
    assert ended["state"] == "completed", ward.explain("early")
    assert ward.kinds("early")[:-1] == ["preempted"] * 3, ward.explain("early")
    reference.assert_same("early", 0, 1)


@pytest.mark.usually("24.11")
def test_a_time_limit(reference: Reference) -> None:
    ward = reference.ward
    ward.submit(
        "limit",
        resources={"time": "00:01:00"},
        config={"pause": 1.0},
        recovery={"stop_before": "00:00:30"},
    )
    (ended,) = ward.wait_for_end("limit")
    assert ended["state"] == "completed", ward.explain("limit")
    assert set(ward.kinds("limit")[:-1]) == {"time_limit"}
    assert set(ward.lost_steps("limit")) == {0}
    reference.assert_same("limit", 0, 1)
    ward.assert_reconciled("limit", 0, str(ended["job_id"]))


@pytest.mark.usually("22.05")
def test_a_cancelled_run_stays_cancelled_until_it_is_requeued(reference: Reference) -> None:
    """By scancel while it runs, and by hpcrun while it waits for its requeue."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("twice", sweep={"grid": {"config.seed": [1, 2]}})
    runs = ward.wait_for_step("twice", 3)
    slurm.run(["scancel", str(runs[0]["job_id"])])
    raw = ward.raw_job_id(str(runs[1]["job_id"]))
    ward.kill(runs[1]["nodes"][0], "hpcrun.run.worke[r]", raw)
    ward.wait("twice", lambda runs: runs[1]["state"] == "requeued", 60)
    ward.hpcrun("cancel", "twice/1", "--yes")
    ended = ward.wait_for_end("twice")
    assert [run["state"] for run in ended] == ["cancelled"] * 2
    time.sleep(8)
    assert [run["state"] for run in ward.status("twice")] == ["cancelled"] * 2
    assert [len(ward.attempts("twice", run)) for run in (0, 1)] == [1, 1]
    assert ward.kinds("twice", 0) == ["cancelled"]
    until(lambda: slurm.run(["squeue", "--me", "-h"]).stdout == "", "an empty queue", 30)
    ward.hpcrun("requeue", "twice", "--yes")
    ended = ward.wait_for_end("twice")
    assert [run["state"] for run in ended] == ["completed"] * 2, ward.explain("twice")
    assert [ward.attempts("twice", run)[1].number for run in (0, 1)] == [2, 2]
    reference.assert_same("twice", 0, 1)
