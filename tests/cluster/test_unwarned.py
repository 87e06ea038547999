"""Runs that lose ranks, nodes, supervisors and Slurm itself without a word, on a real Slurm.

Those that come back must end with the same weights, to the bit, and the same loss at every step as
a run of the same spec that nothing happened to.
"""

from __future__ import annotations

import time

import pytest

from tests.cluster.ward import EVERY, Reference

pytestmark = pytest.mark.timeout(900)


@pytest.mark.usually
def test_ranks_that_fall_once_are_started_again(reference: Reference) -> None:
    """By an exception, a segfault and an exit code, as elements of an array."""
    ward = reference.ward
    faults = ["exception", "SIGSEGV", "exit"]
    ward.submit(
        "stumble",
        config={"pause": 0, "fault": "none", "fault_step": 13, "fault_rank": 1},
        sweep={"grid": {"config.fault": faults}},
    )
    ended = ward.wait_for_end("stumble")
    assert [run["state"] for run in ended] == ["completed"] * 3, ward.explain("stumble")
    for run, words in enumerate(["once is enough", "SIGSEGV", "exit code 3"]):
        assert ward.kinds("stumble", run) == ["rank_crash", None]
        cause = ward.attempts("stumble", run)[0].cause
        assert cause is not None
        assert cause["rank"] == 1
        assert words in cause["message"]
        assert 0 <= ward.lost_steps("stumble", run)[0] <= EVERY
        reference.assert_same("stumble", run, 1)
        ward.assert_reconciled("stumble", run, str(ended[run]["job_id"]))


@pytest.mark.usually("24.11")
def test_ends_that_come_again_stop_the_run_and_are_named(reference: Reference) -> None:
    ward = reference.ward
    faults = {"always": "rank_crash", "nan": "non_finite_loss", "memory": "out_of_memory"}
    ward.submit(
        "doomed",
        config={"pause": 0, "fault": "none", "fault_step": 13, "fault_rank": 1},
        sweep={"grid": {"config.fault": list(faults)}},
    )
    ended = ward.wait_for_end("doomed")
    assert [run["state"] for run in ended] == ["failed"] * 3, ward.explain("doomed")
    assert [run["cause"]["kind"] for run in ended] == list(faults.values())
    assert all(1 < run["attempt"] <= 4 for run in ended)
    assert "ValueError: this cannot work" in ended[0]["reason"]
    why = ward.hpcrun("why", "doomed").stdout
    assert "this cannot work" in why
    assert "not been finite" in why
    assert "out of memory" in why


@pytest.mark.usually("24.11")
def test_nodes_that_lose_their_power(reference: Reference) -> None:
    """One run loses its second node, another the one with its supervisor."""
    ward, slurm = reference.ward, reference.ward.cluster
    for name in ("second", "batch"):
        ward.submit(name, resources={"sbatch": {"exclusive": True}})
    second, batch = ward.wait_for_step("second", 12)[0], ward.wait_for_step("batch", 12)[0]
    slurm.power_off(second["nodes"][1])
    slurm.power_off(batch["nodes"][0])
    for name in ("second", "batch"):
        (ended,) = ward.wait_for_end(name)
        assert ended["state"] == "completed", ward.explain(name)
        assert ward.kinds(name) == ["node_failure", None]
        assert 0 <= ward.lost_steps(name)[0] <= EVERY
        reference.assert_same(name, 0, 1)
        ward.assert_reconciled(name, 0, str(ended["job_id"]))


@pytest.mark.usually
def test_a_controller_that_is_down_when_a_rank_dies(reference: Reference) -> None:
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("alone")
    (run,) = ward.wait_for_step("alone", 12)
    raw = ward.raw_job_id(str(run["job_id"]))
    slurm.stop_controller()
    slurm.stop_database_daemon()
    ward.kill(run["nodes"][1], "hpcrun.run.worke[r]", raw)
    time.sleep(20)
    slurm.start_database_daemon()
    slurm.start_controller()
    (ended,) = ward.wait_for_end("alone")
    assert ended["state"] == "completed", ward.explain("alone")
    assert ward.kinds("alone") == ["rank_crash", None]
    assert 0 <= ward.lost_steps("alone")[0] <= EVERY
    reference.assert_same("alone", 0, 1)


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
    paths = ward.experiment("stale").run(0)
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
