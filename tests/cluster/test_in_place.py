"""Runs that are restarted inside their allocation, on a real Slurm: no requeue, and no lost bit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import ARRAY, EVERY, PROGRAM, SINGLE, SPARE, STAGE, STAGES, Reference
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)

NEARBY = 3
# Agents fall silent for so long before their nodes are given up; the rest is for the restart.
HEARTBEAT, RESTART = 10, 15


def _one_start(reference: Reference, run: str, kind: str) -> list[ledger.Attempt]:
    """The attempts of a run that came back in its allocation and lost no more than it may."""
    ward = reference.ward
    assert ward.kinds(run) == [kind, None], ward.explain(run)
    first, second = ward.attempts(run)
    assert ledger.same_start(first, second)
    assert (first.decided or {})["action"] == "restart"
    assert 0 <= ward.lost_steps(run)[0] <= EVERY
    ward.assert_reconciled(run)
    return [first, second]


@pytest.mark.usually
@pytest.mark.parametrize("form", [SINGLE, ARRAY])
def test_a_killed_rank(reference: Reference, form: str) -> None:
    """First, last and any rank, of each ZeRO stage; nothing of the old ranks is left."""
    ward = reference.ward
    stages = STAGES if form == ARRAY else STAGES[1:3]
    runs = ward.submit_each(form, f"killed-{form}", STAGE, stages)
    hurt: set[int] = set()

    def kill(found: list[dict[str, Any]]) -> bool:
        for number, run in enumerate(found):
            if number not in hurt and (run["step"] or 0) >= 12:
                raw = ward.raw_job_id(str(run["job_id"]))
                ward.kill(run["nodes"][number % 2], f"{PROGRAM}worker", raw)
                hurt.add(number)
        return len(hurt) == len(runs)

    ward.wait(runs, kill)
    ward.wait_for_end(runs)
    for run, stage in zip(runs, stages, strict=True):
        first, second = _one_start(reference, run, "rank_crash")
        assert first.started["nodes"] == second.started["nodes"]
        assert second.started["time"] - (first.ended or {})["time"] < RESTART
        reference.assert_same(run, stage)
    told = ward.hpcrun("why", runs[0]).stdout
    assert "hpcrun restarted it in place; attempt 2 began" in told


@pytest.mark.usually("24.11")
def test_warm_ranks_of_a_step_of_several_nodes_outlive_one(reference: Reference) -> None:
    """A spare's take the place of the lost node's; srun waits for those until Slurm has noticed.

    Only large jobs have such steps: here a supervisor takes two for many.
    """
    ward, slurm = reference.ward, reference.ward.cluster
    site = ward.root.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'hpcrun.run.supervisor' in sys.orig_argv:\n"
        "    from hpcrun.run.job import agent_steps\n"
        "    agent_steps.MOST = 2\n"
    )
    ward.submit(
        "warm-ranks",
        resources={**SPARE, "spare_nodes": 2},
        recovery={"warm_after": "00:00:01"},
        config={"pause": 0.5},
        environment={"setup": [f"export PYTHONPATH={site}:$PYTHONPATH"]},
    )
    (run,) = ward.wait_for_step("warm-ranks", 32)
    names = slurm.run(["squeue", "--steps", "--noheader", "--format=%j %N"]).stdout.split("\n")
    assert "hpcrun-workers-2-warm-group-1 n[2-4]" in names
    slurm.power_off(run["nodes"][1])
    ward.wait_for_end("warm-ranks")
    attempts = _one_start(reference, "warm-ranks", "node_failure")
    assert [attempt.warm for attempt in attempts] == [False, True]
    assert [attempt.started["nodes"] for attempt in attempts] == [["n1", "n2"], ["n1", "n3"]]
    reference.assert_same("warm-ranks")


@pytest.mark.usually("24.11")
def test_a_node_that_loses_its_power_is_replaced_by_a_spare(reference: Reference) -> None:
    """Without waiting for Slurm to notice, which then takes the dead node from the job.

    What only the nodes' storage had is not lost with the node.
    """
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit(
        "spared",
        resources=SPARE,
        deepspeed={"zero_optimization": {"stage": 3}},
        checkpoint={"nearby_every": NEARBY},
    )
    (run,) = ward.wait_for_step("spared", 12)
    dead = run["nodes"][1]
    when = time.time()
    slurm.power_off(dead)
    ward.wait_for_end("spared")
    first, second = _one_start(reference, "spared", "node_failure")
    restored = int((second.ended or {})["restored_step"])
    assert restored > 10
    assert ward.lost_steps("spared")[0] <= NEARBY
    assert second.started["time"] - when < HEARTBEAT + RESTART
    assert dead in first.started["nodes"]
    assert dead not in second.started["nodes"]
    reference.assert_same("spared", 3)
    (gone,) = set(first.started["nodes"]) - set(second.started["nodes"])
    (came,) = set(second.started["nodes"]) - set(first.started["nodes"])
    told = ward.hpcrun("why", "spared").stdout
    assert f"hpcrun restarted it in place, with {came} for {gone}; attempt 2 began" in told


@pytest.mark.usually
def test_a_second_node_that_is_lost_when_no_spare_is_left(reference: Reference) -> None:
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("twice", resources=SPARE)
    (run,) = ward.wait_for_step("twice", 12)
    slurm.power_off(run["nodes"][1])
    (run,) = ward.wait("twice", lambda runs: runs[0]["attempt"] == 2 and runs[0]["step"] >= 22)
    lost = run["nodes"][1]
    slurm.power_off(lost)
    until(lambda: (ward.attempts("twice")[1].decided or {}).get("action"), "a decision", 60)
    decided = ward.attempts("twice")[1].decided
    assert decided is not None
    assert decided["action"] == "requeue"
    assert lost in decided["exclude"]
    # Two of four nodes are left, and the job asks for three.
    ward.hpcrun("cancel", "twice", "--yes")
    ward.wait_for_end("twice", "cancelled")


@pytest.mark.usually
def test_no_process_of_the_first_attempt_is_left(reference: Reference) -> None:
    """Ranks that ignore every signal, and what they started in sessions of their own."""
    ward = reference.ward
    ward.write(
        "stubborn.sh",
        "trap '' TERM INT USR1 USR2\n"
        "[ $HPCRUN_ATTEMPT = 2 ] && { ps -eo args >$HPCRUN_DIRECTORY/ps-$RANK; exit 0; }\n"
        "sleep 987654 &\n"
        "[ $RANK = 1 ] && sleep 3 && exit 9\n"
        "wait; sleep 987655\n",
    )
    resources = {"nodes": 2, "time": "00:10:00", "mem": 500}
    spec = {"entry": ["bash", "stubborn.sh"], "cluster": "bed", "resources": resources}
    ward.hpcrun("submit", ward.spec("stubborn", spec))
    ward.wait_for_end("stubborn")
    assert ward.kinds("stubborn") == ["rank_crash", None]
    for rank in (0, 1):
        assert "sleep 98765" not in (ward.paths("stubborn").directory / f"ps-{rank}").read_text()


@pytest.mark.usually
def test_a_spare_whose_network_was_away_for_a_while(reference: Reference) -> None:
    """It is given up, finds the supervisor alive when it is back, and leaves the run alone."""
    ward, slurm = reference.ward, reference.ward.cluster
    ward.submit("blip", resources=SPARE, config={"pause": 1.0})
    (run,) = ward.wait_for_step("blip", 3)
    spare = next(node for node in ("n1", "n2", "n3") if node not in run["nodes"])
    slurm.link(spare, "eth0", up=False)
    time.sleep(HEARTBEAT + 5)
    slurm.link(spare, "eth0", up=True)
    ward.wait_for_end("blip")
    assert ward.kinds("blip") == [None], ward.explain("blip")
    reference.assert_same("blip")
