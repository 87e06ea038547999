"""Which checkpoints go, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.policy.retention import Retention
from hpcrun.state.manifest import File, Manifest
from hpcrun.state.spec.blocks import SpecBlocks


def _complete(steps: Mapping[int, float | None], attempt: int = 1) -> list[tuple[Path, Manifest]]:
    """Checkpoints by step with their loss, newest first."""
    return [
        (
            Path(f"step-{step:08d}-a{attempt}"),
            Manifest(
                step=step,
                attempt=attempt,
                time=0.0,
                world_size=1,
                zero_stage=0,
                train_batch_size=1,
                files={"shard.pt": File(1, "")},
                metrics={} if loss is None else {"loss": loss},
            ),
        )
        for step, loss in sorted(steps.items(), reverse=True)
    ]


def _kept(retention: Retention, steps: Mapping[int, float | None]) -> list[int]:
    complete = _complete(steps)
    gone = retention.superfluous(complete)
    return sorted(found.step for path, found in complete if path not in gone)


PLAIN: dict[int, float | None] = dict.fromkeys((10, 20, 30, 40, 50))
RATED = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0, 50: 5.0}


@pytest.mark.parametrize(
    ("retention", "steps", "kept"),
    [
        (Retention(newest=2), {}, []),
        (Retention(newest=2), {10: None}, [10]),
        (Retention(newest=2), PLAIN, [40, 50]),
        (Retention(newest=9), PLAIN, [10, 20, 30, 40, 50]),
        (Retention(newest=1), PLAIN, [50]),
        # every K-th step's
        (Retention(newest=1, every=20), PLAIN, [20, 40, 50]),
        (Retention(newest=2, every=20), PLAIN, [20, 40, 50]),
        (Retention(newest=1, every=7), PLAIN, [50]),
        (Retention(newest=1, every=1), PLAIN, [10, 20, 30, 40, 50]),
        # the best by the objective
        (Retention(newest=1, best=1), RATED, [20, 50]),
        (Retention(newest=1, best=2), RATED, [20, 30, 50]),
        (Retention(newest=1, best=2, mode="max"), RATED, [40, 50]),
        (Retention(newest=1, best=3, mode="max"), RATED, [10, 40, 50]),
        (Retention(newest=1, best=9), RATED, [10, 20, 30, 40, 50]),
        # of equals the oldest, whose value the others may only carry on
        (Retention(newest=1, best=1), dict.fromkeys((10, 20, 30), 1.0), [10, 30]),
        (Retention(newest=1, best=1), {10: 1.0, 20: 1.0, 30: 2.0}, [10, 30]),
        # what has no number is not best
        (Retention(newest=1, best=2), {**RATED, 20: math.nan, 30: -math.inf}, [10, 40, 50]),
        (Retention(newest=1, best=1, mode="max"), {**RATED, 40: math.inf}, [50]),
        (Retention(newest=1, best=2), {**RATED, 20: None}, [10, 30, 50]),
        (Retention(newest=1, best=3), PLAIN, [50]),
        (Retention(newest=1, best=3, metric="accuracy"), RATED, [50]),
        # all of it together
        (Retention(newest=1, every=40, best=1), RATED, [20, 40, 50]),
        # of a completed run
        (Retention(newest=2, every=40, best=1).of_completed(), RATED, [20, 50]),
    ],
)
def test_what_is_kept(
    retention: Retention, steps: Mapping[int, float | None], kept: list[int]
) -> None:
    assert _kept(retention, steps) == kept


@given(
    st.dictionaries(st.integers(1, 60), st.none() | st.floats(), max_size=12),
    st.builds(
        Retention,
        newest=st.integers(1, 4),
        every=st.none() | st.integers(1, 9),
        best=st.integers(0, 3),
        mode=st.sampled_from(["min", "max"]),
    ),
)
def test_the_newest_never_goes_and_what_went_stays_gone(
    steps: dict[int, float | None], retention: Retention
) -> None:
    kept = _kept(retention, steps)
    assert set(kept) >= set(sorted(steps)[-retention.newest :])
    assert _kept(retention, {step: steps[step] for step in kept}) == kept


@pytest.mark.parametrize(
    ("spec", "retention"),
    [
        ({}, Retention(2, None, 0, "loss", "min")),
        ({"checkpoint": None, "objective": None}, Retention()),
        ({"checkpoint": {"keep": 5}}, Retention(newest=5)),
        ({"checkpoint": {"keep": None}}, Retention(newest=2)),
        (
            {
                "checkpoint": {"keep": 1, "keep_every": 1000, "keep_best": 3},
                "objective": {"metric": "accuracy", "mode": "max"},
            },
            Retention(1, 1000, 3, "accuracy", "max"),
        ),
    ],
)
def test_what_a_spec_says(spec: dict[str, Any], retention: Retention) -> None:
    assert Retention.of(SpecBlocks(spec)) == retention
