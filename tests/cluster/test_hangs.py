"""Ranks that end in no way and get nowhere, on a real Slurm; and runs that are only slow."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpcrun.state.ledger import Attempt
from tests.cluster.ward import ARRAY, EVERY, STEPS, Reference, Ward

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
def test_a_script_of_which_a_rank_is_stopped(reference: Reference) -> None:
    """It never heard of hpcrun: its node sees it, and the other rank tells where it is."""
    ward = reference.ward
    first = _script_that_hangs(ward, "plain")
    assert "rank 1 has been stopped (SIGSTOP) for" in first.cause["message"]
    assert (first.cause["rank"], first.cause["node"]) == (1, first.started["nodes"][1])
    assert "plain.py" in ward.paths("plain").attempt(1).stacks(0).read_text()
    assert "rank 1 has been stopped (SIGSTOP)" in ward.hpcrun("why", "plain").stdout


@pytest.mark.usually
def test_a_script_that_waits_for_a_build_that_was_killed(reference: Reference) -> None:
    """All ranks wait for a lock that nobody holds; the next attempt builds elsewhere."""
    ward = reference.ward
    first = _script_that_hangs(ward, "stale_lock")
    assert "/stale_lock/lock" in first.cause["message"]
    assert "/stale_lock/lock" in ward.hpcrun("why", "stale_lock").stdout
    logs = ward.paths("stale_lock").attempt(2).rank_logs().values()
    assert all("built in" in log.read_text() for log in logs), ward.explain("stale_lock")


def _script_that_hangs(ward: Ward, name: str) -> Attempt:
    """Run a script that hangs once, and return its first attempt."""
    resources = {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00", "mem": 2000}
    recovery = {"hang_after": f"00:00:{AFTER}"}
    spec = {"entry": f"{name}.py", "cluster": "bed", "resources": resources, "recovery": recovery}
    ward.hpcrun("submit", ward.spec(name, spec))
    ward.wait_for_end(name)
    assert ward.kinds(name) == ["hang", None], ward.explain(name)
    first = ward.attempts(name)[0]
    assert first.end["time"] - (first.workers_started or 0.0) < 3 * AFTER + 10
    return first


@pytest.mark.usually
@pytest.mark.parametrize(
    ("after", "compilation", "save", "evaluation", "pause"),
    [
        pytest.param(AFTER, *[2 * AFTER] * 4, id="short"),
        # The default, and what users have seen.
        pytest.param(300, 120, 180, 330, 60, id="real", marks=pytest.mark.timeout(2400)),
    ],
)
def test_runs_that_are_only_slow(
    reference: Reference, after: int, compilation: int, save: int, evaluation: int, pause: int
) -> None:
    """A first compilation, saves, an evaluation on one rank, and no controller."""
    ward, slurm = reference.ward, reference.ward.cluster
    name = f"slow-{after}"
    spec = _spec("loop", loop_seconds=evaluation, compile_seconds=compilation, save_seconds=save)
    recovery = {"hang_after": f"00:{after // 60:02}:{after % 60:02}"}
    resources = {"time": "01:00:00"}
    checkpoint = {"every": STEPS // 2}
    ward.submit(name, **{**spec, "recovery": recovery}, resources=resources, checkpoint=checkpoint)
    # The steps that follow are told together, after the evaluation.
    ward.wait(name, lambda runs: runs[0]["step"], compilation + 120)
    slurm.stop_controller()
    time.sleep(pause)
    slurm.start_controller()
    ward.wait_for_end(name, seconds=2000)
    assert ward.kinds(name) == [None]
    reference.assert_same(name)


@pytest.mark.usually
def test_a_rank_that_is_slower_than_the_other(reference: Reference) -> None:
    """It is named, and nothing is done about it."""
    ward = reference.ward
    ward.submit("lame", config={"pause": 0, "lame_rank": 1, "lame_seconds": 2.5})
    ward.wait_for_end("lame")
    assert ward.kinds("lame") == [None]
    found = ward.attempts("lame")[0]
    assert found.straggler is not None
    assert (found.straggler["rank"], found.straggler["node"]) == (1, found.started["nodes"][1])
    assert "Rank 1 on n2 held up the others: " in ward.hpcrun("why", "lame").stdout
    reference.assert_same("lame")
