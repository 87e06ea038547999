"""Ranks that end in no way and get nowhere, on a real Slurm; and runs that are only slow."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.ward import ARRAY, EVERY, Reference

pytestmark = pytest.mark.timeout(900)

AFTER = 12
# What rank 1 does at step 13 -> words of the message.
SILENT = {
    "SIGSTOP": "rank 1 has been stopped (SIGSTOP) for",
    "starve": "rank 1 is in survivor.py",
}
# It computes, so that it has six times as long.
BUSY = {"loop": "no rank has finished a step for"}


def _spec(fault: str, **config: Any) -> dict[str, Any]:
    faults = {"fault": fault, "fault_step": 13, "fault_rank": 1, "loop_seconds": 600}
    return {
        "config": {"pause": 0, **faults, **config},
        "recovery": {"hang_after": f"00:00:{AFTER}"},
    }


@pytest.mark.parametrize(
    "hangs",
    [
        pytest.param(SILENT, marks=pytest.mark.usually, id="silent"),
        pytest.param(BUSY, marks=pytest.mark.usually, id="busy"),
    ],
)
def test_ranks_that_hang(reference: Reference, hangs: dict[str, str]) -> None:
    ward = reference.ward
    name = f"hang-{len(hangs)}"
    runs = ward.submit_each(ARRAY, name, "config.fault", list(hangs), **_spec("none"))
    ward.wait_for_end(runs)
    for run, words in zip(runs, hangs.values(), strict=True):
        assert ward.kinds(run) == ["hang", None], ward.explain(run)
        attempt = ward.attempts(run)[0]
        cause = attempt.cause
        assert cause is not None
        assert words in cause["message"]
        assert (cause["rank"], cause["node"]) == (1, attempt.started["nodes"][1])
        assert 0 <= ward.lost_steps(run)[0] <= EVERY
        reference.assert_same(run)
        ward.assert_reconciled(run)
        kept = ward.paths(run).attempt(1).stacks(0)
        assert "all_reduce" in kept.read_text() or "distributed" in kept.read_text()
    last = ward.attempts(runs[-1])[0].cause
    assert last is not None
    assert "the others wait in" in last["message"]


@pytest.mark.usually
def test_runs_that_are_only_slow(reference: Reference) -> None:
    """A first compilation, saves, an evaluation on one rank, and no controller."""
    ward, slurm = reference.ward, reference.ward.cluster
    slow = 2 * AFTER
    ward.submit(
        "slow",
        **_spec("loop", loop_seconds=slow, compile_seconds=slow, save_seconds=slow),
    )
    ward.wait_for_step("slow", 11)
    slurm.stop_controller()
    time.sleep(slow)
    slurm.start_controller()
    ward.wait_for_end("slow", seconds=400)
    assert ward.kinds("slow") == [None]
    reference.assert_same("slow")
