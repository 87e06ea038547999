"""Jobs whose batch host is lost, and that another of their nodes leads then, on a real Slurm."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import ARRAY, EVERY, PROGRAM, SPARE, STAGE, Reference, Ward
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)


def _sleeping(ward: Ward, name: str, then: str, **changes: Any) -> str:
    """Submit ranks that sleep in the first attempt, lose the batch host; return its name."""
    ward.write(f"{name}.sh", f"[ $HPCRUN_ATTEMPT = 1 ] && sleep 300\n{then}\n")
    resources = {"nodes": 2, "time": "00:10:00", "mem": 500, **SPARE}
    spec = {"entry": ["bash", f"{name}.sh"], "cluster": "bed", "resources": resources, **changes}
    ward.hpcrun("submit", ward.spec(name, spec))
    until(lambda: ward.attempts(name) and ward.attempts(name)[0].workers_started, "ranks", 60)
    lost: str = ward.attempts(name)[0].started["nodes"][0]
    ward.cluster.power_off(lost)
    until(lambda: len(ward.attempts(name)) > 1, "the next attempt", 60)
    assert ward.attempts(name)[1].started["instead_of"] == lost
    return lost


@pytest.mark.usually("24.11")
def test_one_batch_host_after_the_other(reference: Reference) -> None:
    """Elements of an array; the job keeps its allocation, and ends as completed.

    Warm ranks go on under the new supervisor, though their srun is lost; one of them is killed.
    """
    ward, slurm = reference.ward, reference.ward.cluster
    changes = {"resources": {**SPARE, "spare_nodes": 2}, "config": {"pause": 1.0}}
    changes["recovery"] = {"warm_after": "00:00:01"}
    (run,) = ward.submit_each(ARRAY, "headless", STAGE, [1], **changes)
    lost = []
    for step in (9, 22):
        (found,) = ward.wait_for_step(run, step)
        lost.append(found["nodes"][0])
        slurm.power_off(lost[-1])
        until(lambda: ward.attempts(run)[-1].started.get("instead_of") == lost[-1], "it", 60)
        if step == 9:
            (found,) = ward.wait_for_step(run, 14)
            ward.hurt_ranks(found["nodes"][1], ward.raw_job_id(str(found["job_id"])))
    ward.wait_for_end(run)
    attempts = ward.attempts(run)
    assert ward.kinds(run) == ["node_failure", "rank_crash", "node_failure", None]
    assert [one.started.get("instead_of") for one in attempts] == [None, *lost[:1] * 2, lost[1]]
    assert (attempts[1].warm, attempts[3].warm) == (True, True)
    assert "was ended by a signal that nobody saw" in (attempts[1].cause or {})["message"]
    assert all(ledger.same_start(attempts[0], one) for one in attempts)
    assert all(0 <= steps <= EVERY for steps in ward.lost_steps(run))
    reference.assert_same(run)
    ward.assert_reconciled(run)
    for node in lost:
        slurm.boot(node)
    slurm.wait_job(attempts[0].job_id, "COMPLETED", 120)
    assert len(ward.attempts(run)) == 4
    assert "in place of the batch host" in ward.hpcrun("why", run).stdout


@pytest.mark.usually
def test_its_supervisor_is_killed_too(reference: Reference) -> None:
    """Its agents have the job requeued, as there is no keeper."""
    ward = reference.ward
    ward.submit("twice-led", resources=SPARE)
    (found,) = ward.wait_for_step("twice-led", 8)
    ward.cluster.power_off(found["nodes"][0])
    (found,) = ward.wait("twice-led", lambda runs: runs[0]["attempt"] == 2 and runs[0]["step"] > 20)
    second = ward.attempts("twice-led")[1]
    ward.kill(second.started["host"], f"{PROGRAM}supervisor")
    ward.wait_for_end("twice-led")
    assert ward.kinds("twice-led") == ["node_failure", "supervisor_lost", None]
    reference.assert_same("twice-led")


@pytest.mark.usually("24.11")
def test_a_run_that_fails_is_not_started_again(reference: Reference) -> None:
    ward = reference.ward
    _sleeping(ward, "failing", "exit 3", recovery={"max_failures": 1})
    ward.wait_for_end("failing", "failed")
    (job,) = {one.job_id for one in ward.attempts("failing")}
    ward.cluster.wait_job(job, "CANCELLED", 60)
    assert ward.status("failing")[0]["state"] == "failed"
    assert ward.kinds("failing") == ["node_failure", "rank_crash"]


@pytest.mark.usually
def test_a_cancelled_one(reference: Reference) -> None:
    ward = reference.ward
    _sleeping(ward, "unwanted", "sleep 300")
    ward.hpcrun("cancel", "unwanted", "--yes")
    ward.wait_for_end("unwanted", "cancelled")
    (job,) = {one.job_id for one in ward.attempts("unwanted")}
    ward.cluster.wait_job(job, "CANCELLED", 60)
    assert len(ward.attempts("unwanted")) == 2


@pytest.mark.usually
def test_a_time_limit(reference: Reference) -> None:
    ward = reference.ward
    ward.submit("limited", resources={**SPARE, "time": "00:01:30"}, config={"pause": 2.5})
    (found,) = ward.wait_for_step("limited", 3)
    ward.cluster.power_off(found["nodes"][0])
    ward.wait_for_end("limited", seconds=400)
    assert ward.kinds("limited") == ["node_failure", "time_limit", None]
    reference.assert_same("limited")


@pytest.mark.usually("22.05")
def test_a_batch_host_that_comes_back(reference: Reference) -> None:
    """Its supervisor finds that another leads, and stays: its end would be that of the job."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("healed", resources=SPARE, config={"pause": 1.2})
    (found,) = ward.wait_for_step("healed", 8)
    lost = found["nodes"][0]
    slurm.link(lost, "eth0", up=False)
    time.sleep(17)
    slurm.link(lost, "eth0", up=True)
    ward.wait_for_end("healed", seconds=400)
    assert ward.kinds("healed") == ["node_failure", None]
    reference.assert_same("healed")
