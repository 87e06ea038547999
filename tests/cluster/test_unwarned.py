"""Runs that lose ranks, nodes, supervisors and Slurm itself without a word, on a real Slurm.

Those that come back must end with the same weights, to the bit, and the same loss at every step as
a run of the same spec that nothing happened to.
"""

from __future__ import annotations

import time

import pytest

from tests.cluster.ward import ARRAY, EVERY, SINGLE, STAGE, Reference
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)

# What a rank does once -> the kind of end that follows, and words of its message.
ONCE = {
    "exception": ("rank_crash", "once is enough"),
    "SIGSEGV": ("rank_crash", "SIGSEGV"),
    "exit": ("rank_crash", "exit code 3"),
    "memory-once": ("out_of_memory", "memory"),
    "memory-in-save": ("out_of_memory", "memory"),
}


@pytest.mark.usually
@pytest.mark.parametrize("form", [SINGLE, ARRAY])
def test_ranks_that_fall_once_are_started_again(reference: Reference, form: str) -> None:
    ward = reference.ward
    runs = ward.submit_each(
        form,
        f"stumble-{form}",
        "config.fault",
        list(ONCE),
        config={"pause": 0, "fault": "none", "fault_step": 13, "fault_rank": 1},
    )
    ward.wait_for_end(runs)
    for run, (kind, words) in zip(runs, ONCE.values(), strict=True):
        assert ward.kinds(run) == [kind, None]
        cause = ward.attempts(run)[0].cause
        assert cause is not None
        assert kind != "rank_crash" or cause["rank"] == 1
        assert words in cause["message"]
        assert 0 <= ward.lost_steps(run)[0] <= EVERY
        reference.assert_same(run)
        ward.assert_reconciled(run)


@pytest.mark.usually
def test_ends_that_come_again_stop_the_run_and_are_named(reference: Reference) -> None:
    ward = reference.ward
    faults = {"always": "rank_crash", "nan": "non_finite_loss", "memory": "out_of_memory"}
    runs = ward.submit_each(
        ARRAY,
        "doomed",
        "config.fault",
        list(faults),
        config={"pause": 0, "fault": "none", "fault_step": 13, "fault_rank": 1},
    )
    ended = ward.wait_for_end(runs, "failed")
    assert [run["cause"]["kind"] for run in ended] == list(faults.values())
    assert all(1 < run["attempt"] <= 4 for run in ended)
    assert "ValueError: this cannot work" in ended[0]["reason"]
    why = ward.hpcrun("why", "doomed").stdout
    assert "this cannot work" in why
    assert "not been finite" in why
    assert "out of memory" in why


@pytest.mark.usually
@pytest.mark.parametrize("form", [SINGLE, ARRAY])
def test_nodes_that_lose_their_power(reference: Reference, form: str) -> None:
    """One run loses its second node, another the one with its supervisor."""
    ward, slurm = reference.ward, reference.ward.cluster
    alone = {"sbatch": {"exclusive": True}}
    runs = ward.submit_each(form, f"power-{form}", STAGE, [1, 2], resources=alone)
    found = ward.wait_for_step(runs, 12)
    for lost, run in zip((1, 0), found, strict=True):
        slurm.power_off(run["nodes"][lost])
    ward.wait_for_end(runs)
    for run, stage in zip(runs, (1, 2), strict=True):
        assert ward.kinds(run) == ["node_failure", None]
        assert 0 <= ward.lost_steps(run)[0] <= EVERY
        reference.assert_same(run, stage)
        ward.assert_reconciled(run)


@pytest.mark.usually
def test_a_dead_node_is_waited_for_where_there_is_no_other(reference: Reference) -> None:
    """Without it there are too few: Slurm would hold the job for good."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("narrow", resources={"exclude": "n[3-4]", "sbatch": {"exclusive": True}})
    ward.wait_for_step("narrow", 12)
    slurm.power_off("n2")
    ward.wait("narrow", lambda found: found[0]["state"] == "requeued")
    slurm.boot("n2")
    ward.wait_for_end("narrow")
    first, _ = ward.attempts("narrow")
    assert (first.decided or {})["exclude"] == []
    assert ward.kinds("narrow") == ["node_failure", None]


@pytest.mark.usually
def test_a_run_that_lost_a_node_and_is_cancelled_before_it_is_requeued(
    reference: Reference,
) -> None:
    """Before 24.11 the requeue waits for Slurm to find the node down; the cancel comes then."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("unwanted", resources={"sbatch": {"exclusive": True}})
    (run,) = ward.wait_for_step("unwanted", 3)
    slurm.power_off(run["nodes"][1])
    until(lambda: ward.attempts("unwanted")[0].decided, "the decision", 60)
    slurm.run(["scancel", str(run["job_id"])])
    ward.wait_for_end("unwanted", "cancelled")
    time.sleep(5)
    assert ward.kinds("unwanted") == ["node_failure"]
    assert slurm.run(["squeue", "--me", "-h", "-t", "pending,running"]).stdout == ""


@pytest.mark.usually
@pytest.mark.parametrize(
    ("form", "down"),
    [
        (SINGLE, ["controller", "database_daemon"]),
        (ARRAY, ["controller"]),
        (ARRAY, ["database_daemon"]),
    ],
)
def test_slurm_that_is_down_when_a_rank_dies(
    reference: Reference, form: str, down: list[str]
) -> None:
    """Of an array, the element with the array's own id; its sibling hears nothing."""
    ward, slurm = reference.ward, reference.ward.cluster
    stages = [0, 2] if form == ARRAY else [1]
    runs = ward.submit_each(form, f"alone-{form}-{len(down)}-{down[0][0]}", STAGE, stages)
    found = ward.wait_for_step(runs, 12)
    raw = [ward.raw_job_id(str(run["job_id"])) for run in found]
    hurt = raw.index(str(found[0]["job_id"]).partition("_")[0])
    for daemon in down:
        getattr(slurm, f"stop_{daemon}")()
    ward.kill(found[hurt]["nodes"][1], "hpcrun.run.worke[r]", raw[hurt])
    time.sleep(20)
    for daemon in reversed(down):
        getattr(slurm, f"start_{daemon}")()
    ward.wait_for_end(runs)
    for number, (run, stage) in enumerate(zip(runs, stages, strict=True)):
        assert ward.kinds(run) == (["rank_crash", None] if number == hurt else [None])
        reference.assert_same(run, stage)
        ward.assert_reconciled(run)
    assert 0 <= ward.lost_steps(runs[hurt])[0] <= EVERY


@pytest.mark.usually
def test_stale_ranks_that_wake_up_write_nothing(reference: Reference) -> None:
    """Two ranks sleep while the next attempt is claimed; nor does their supervisor requeue it."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("stale")
    (run,) = ward.wait_for_step("stale", 12)
    raw = ward.raw_job_id(str(run["job_id"]))
    for node in run["nodes"]:
        ward.kill(node, "hpcrun.run.worke[r]", raw, "STOP")
    time.sleep(2)
    paths = ward.paths("stale")
    paths.attempt(2).directory.mkdir()
    written = (paths.attempt(1).metrics, paths.attempt(1).session)
    before = [path.read_bytes() for path in written]
    saved = sorted(path.name for path in paths.checkpoints.iterdir())
    for node in run["nodes"]:
        ward.kill(node, "hpcrun.run.worke[r]", raw, "CONT")
    slurm.wait_job(raw, timeout=60)
    assert [path.read_bytes() for path in written] == before
    assert sorted(path.name for path in paths.checkpoints.iterdir()) == saved
    assert len(ward.attempts("stale")) == 1
    assert slurm.run(["squeue", "--me", "-h", "-t", "pending"]).stdout == ""
