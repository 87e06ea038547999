"""Runs that are stopped on a real Slurm, after a warning, and come back by themselves.

Each of them must end with the same weights, to the bit, and the same loss at every step as a run
of the same spec that nothing happened to.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.ward import ARRAY, EVERY, SINGLE, STAGE, STAGES, Reference
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)


FORMS = [
    pytest.param(SINGLE, marks=pytest.mark.usually),
    pytest.param(ARRAY, marks=pytest.mark.usually("22.05")),
]


@pytest.mark.parametrize("form", FORMS)
def test_runs_that_are_hurt_in_different_ways(reference: Reference, form: str) -> None:
    """Killed rank, requeue by hand, killed supervisor, signal by hand: one each."""
    ward, slurm = reference.ward, reference.ward.cluster
    runs = ward.submit_each(form, f"storm-{form}", STAGE, STAGES)
    raw: dict[int, str] = {}
    nodes: dict[int, list[str]] = {}

    def hurt(found: list[dict[str, Any]]) -> bool:
        for number, run in enumerate(found):
            job = str(run["job_id"])
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

    first = ward.wait(runs, hurt)[0]
    assert str(first["job_id"]).partition("_")[0] in raw.values(), "one has the array's own id"
    ward.wait_for_end(runs)
    assert [ward.kinds(run) for run in runs] == [
        ["rank_crash", None],
        ["requeued", None],
        ["supervisor_lost", None],
        ["signal", None],
    ]
    crash = ward.attempts(runs[0])[0].cause
    assert crash is not None
    assert (crash["rank"], crash["node"], crash["signal"]) == (1, nodes[0][1], "SIGKILL")
    for run, stage in zip(runs, STAGES, strict=True):
        reference.assert_same(run, stage)
        ward.assert_reconciled(run)
    lost = [ward.lost_steps(run) for run in runs]
    assert lost[1] == lost[3] == [0]
    assert 0 <= lost[0][0] <= EVERY
    assert 0 <= lost[2][0] <= EVERY


@pytest.mark.parametrize(
    ("partition", "stage"),
    [
        pytest.param("main", 2, marks=pytest.mark.usually),
        pytest.param("cancel", 3, marks=pytest.mark.usually("22.05")),
        pytest.param("abrupt", 0, marks=pytest.mark.usually),
        pytest.param("abrupt-cancel", 1, marks=pytest.mark.usually),
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
    ward.wait_for_end(name)
    _assert_stopped_and_continued(reference, name, stage)


@pytest.mark.usually
@pytest.mark.parametrize("partition", ["main", "cancel"])
def test_an_element_that_is_preempted(reference: Reference, partition: str) -> None:
    """It has the array's own id; its sibling, on other nodes, hears nothing."""
    ward = reference.ward
    runs = ward.submit_each(
        ARRAY,
        f"element-{partition}",
        STAGE,
        [2, 3],
        resources={"partition": partition, "sbatch": {"exclusive": True}},
    )
    found = ward.wait_for_step(runs, 12)
    array = str(found[0]["job_id"]).partition("_")[0]
    (hurt,) = (i for i in (0, 1) if ward.raw_job_id(str(found[i]["job_id"])) == array)
    ward.preempt(found[hurt]["nodes"])
    ward.wait_for_end(runs)
    _assert_stopped_and_continued(reference, runs[hurt], 2 + hurt)
    assert ward.kinds(runs[1 - hurt]) == [None]
    reference.assert_same(runs[1 - hurt], 3 - hurt)


def _assert_stopped_and_continued(reference: Reference, run: str, stage: int) -> None:
    ward = reference.ward
    assert ward.kinds(run) == ["preempted", None]
    assert ward.lost_steps(run) == [0]
    reference.assert_same(run, stage)
    ward.assert_reconciled(run)


@pytest.mark.usually
def test_preempted_three_times_while_it_starts(reference: Reference) -> None:
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("early", resources={"sbatch": {"nodelist": "n1,n2"}})
    for attempt in (1, 2, 3):
        ward.wait("early", lambda runs, n=attempt: runs[0]["attempt"] == n)
        slurm.wait_job(ward.preempt(["n1", "n2"], 1))
    ward.wait_for_end("early")
    assert ward.kinds("early")[:-1] == ["preempted"] * 3, ward.explain("early")
    reference.assert_same("early")


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(SINGLE, marks=pytest.mark.usually),
        pytest.param(ARRAY, marks=pytest.mark.usually("22.05")),
    ],
)
def test_a_time_limit(reference: Reference, form: str) -> None:
    ward = reference.ward
    runs = ward.submit_each(
        form,
        f"limit-{form}",
        STAGE,
        [0, 3] if form == ARRAY else [1],
        resources={"time": "00:01:00"},
        # More than the 30 s of an attempt, less than those of two; on a busy machine one of them
        # may end before its first step.
        config={"pause": 0.8},
        recovery={"stop_before": "00:00:30", "max_failures": 9},
    )
    ward.wait_for_end(runs, seconds=480)
    for run, stage in zip(runs, [0, 3] if form == ARRAY else [1], strict=True):
        assert set(ward.kinds(run)[:-1]) == {"time_limit"}
        assert set(ward.lost_steps(run)) == {0}
        reference.assert_same(run, stage)
        ward.assert_reconciled(run)


@pytest.mark.usually("22.05")
def test_a_cancelled_run_stays_cancelled_until_it_is_requeued(reference: Reference) -> None:
    """By scancel while it runs, and by hpcrun while it waits for its requeue."""
    ward, slurm = reference.ward, reference.ward.cluster
    requeued = {"in_place": 0}
    runs = ward.submit_each(ARRAY, "twice", "config.seed", [1, 2], recovery=requeued)
    found = ward.wait_for_step(runs, 3)
    slurm.run(["scancel", str(found[0]["job_id"])])
    raw = ward.raw_job_id(str(found[1]["job_id"]))
    ward.kill(found[1]["nodes"][0], "hpcrun.run.worke[r]", raw)
    ward.wait(runs, lambda found: found[1]["state"] == "requeued", 60)
    ward.hpcrun("cancel", runs[1], "--yes")
    ward.wait_for_end(runs, "cancelled")
    time.sleep(8)
    assert [run["state"] for run in ward.status("twice")] == ["cancelled"] * 2
    assert [len(ward.attempts(run)) for run in runs] == [1, 1]
    assert ward.kinds(runs[0]) == ["cancelled"]
    until(lambda: slurm.run(["squeue", "--me", "-h"]).stdout == "", "an empty queue", 30)
    ward.hpcrun("requeue", "twice", "--yes")
    ward.wait_for_end(runs)
    assert [ward.attempts(run)[1].number for run in runs] == [2, 2]
    reference.assert_same(runs[0])
