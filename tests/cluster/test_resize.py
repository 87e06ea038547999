"""Runs that go on with another number of ranks, on a real Slurm: their losses stay what they were.

Without dropout, whose numbers are drawn by each rank.
"""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import ARRAY, EVERY, STAGE, STAGES, STEPS, Reference, Ward

pytestmark = pytest.mark.timeout(900)

CONFIG = {"dropout": 0, "pause": 1.0}
# What is not said is solved for the number of ranks.
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto"}
Losses = dict[int, float]


@pytest.fixture(scope="module")
def calm() -> dict[tuple[str, int], Losses]:
    """What was found for a version and stage."""
    return {}


def _alone(ward: Ward, calm: dict[tuple[str, int], Losses], stages: list[int]) -> list[Losses]:
    """The losses of runs of two ranks that nothing happens to."""
    version = ward.cluster.version
    if missing := [stage for stage in stages if (version, stage) not in calm]:
        name = "alone-" + "".join(map(str, missing))
        runs = ward.submit_each(
            ARRAY, name, STAGE, missing, config={**CONFIG, "pause": 0}, deepspeed=BATCH
        )
        ward.wait_for_end(runs)
        for stage, run in zip(missing, runs, strict=True):
            calm[version, stage] = ward.outcome(run)[1]
    return [calm[version, stage] for stage in stages]


def _assert_close(ward: Ward, run: str, expected: Losses) -> None:
    """Every attempt had the expected loss at each of its steps, and all steps were done."""
    name, _, number = run.partition("/")
    done = set()
    for attempt in ward.attempts(run):
        for record in ward.metrics(name, int(number or 0), attempt.number):
            if "ranks" not in record:
                done.add(record["step"])
                assert record["loss"] == pytest.approx(expected[record["step"]], rel=1e-3)
    assert done == set(range(1, STEPS + 1))


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param(STAGES[:3], marks=pytest.mark.usually, id="0-1-2"),
        pytest.param(STAGES[3:], marks=pytest.mark.usually, id="3"),
    ],
)
def test_two_ranks_then_four_then_two(
    reference: Reference, calm: dict[tuple[str, int], Losses], stages: list[int]
) -> None:
    """The user changes `nodes` and submits again: the same runs go on, none begins anew."""
    ward = reference.ward
    expected = _alone(ward, calm, stages)
    spec: dict[str, Any] = {"config": CONFIG, "deepspeed": BATCH}
    names = {stage: f"resized-{stage}" for stage in stages}
    for stage, name in names.items():
        ward.submit(name, f"{STAGE}={stage}", **spec)
    # Stage 0, whose checkpoints are not converted, is the first to get anywhere.
    for step, nodes in ((12, 4), (24, 2)):
        for stage, name in names.items():
            ward.wait_for_step(name, step)
            ward.hpcrun("cancel", name, "--yes")
            ward.submit(name, f"resources.nodes={nodes}", f"{STAGE}={stage}", **spec)
    for name, losses in zip(names.values(), expected, strict=True):
        (run,) = ward.wait_for_end(name)
        assert run["run"] == 0
        sizes = [attempt.started["world_size"] for attempt in ward.attempts(name)]
        assert sizes == [2, 4, 2]
        _assert_close(ward, name, losses)
        assert all(0 <= lost <= EVERY for lost in ward.lost_steps(name))


@pytest.mark.usually
@pytest.mark.parametrize("place", [0, 1])
def test_a_run_shrinks_where_a_node_lost_its_power(
    reference: Reference, calm: dict[tuple[str, int], Losses], place: int
) -> None:
    """The batch host, too: the other node leads then."""
    ward, slurm = reference.ward, reference.ward.cluster
    (expected,) = _alone(ward, calm, [3])
    name = f"shrunk-{place}"
    ward.submit(
        name,
        config=CONFIG,
        deepspeed={**BATCH, "zero_optimization": {"stage": 3}},
        resources={"sbatch": {"exclusive": True}},
        recovery={"shrink": True},
    )
    (run,) = ward.wait_for_step(name, 12)
    lost, left = run["nodes"][place], run["nodes"][1 - place]
    slurm.power_off(lost)
    ward.wait_for_end(name)
    first, second = ward.attempts(name)
    assert ledger.same_start(first, second)
    assert second.started["nodes"] == [left]
    _assert_close(ward, name, expected)
    ward.assert_reconciled(name)
    told = ward.hpcrun("why", name).stdout
    led = "" if place else f", led by {left} in place of the batch host"
    assert f"hpcrun restarted it in place, without {lost}{led}; attempt 2 began" in told
