"""The loss scale of fp16 through torch_autocast: it overflows, is saved, and comes back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import RunPaths
from tests.run.ranks import THREE, Worlds

pytestmark = [pytest.mark.training]
FP16 = {"autocast": "float16"}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_scale_after_an_overflow_is_restored_exactly(
    worlds: Worlds, tmp_path: Path, stage: int
) -> None:
    run = RunPaths(tmp_path / "3")
    ranks = worlds(2)
    assert ranks.tell("mixed", stage=stage, **FP16) == [None, None]
    ranks.tell("train_mixed", steps=2)
    before = ranks.tell("scale")[0]
    ranks.tell("overflow")
    scale: dict[str, Any] = ranks.tell("scale")[0]
    if stage == 0:
        assert scale["scale"] == before["scale"] / 2
        assert scale["_growth_tracker"] == 0
    else:
        # DeepSpeed skips the step and leaves its scaler as it was.
        assert scale == before
    saved = ranks.tell("save", run=str(run.directory), step=3)
    assert isinstance(saved[0], dict), saved
    run.attempt(2).directory.mkdir(parents=True)
    held = ranks.tell("contents")[0]
    losses = ranks.tell("train_mixed", steps=3)
    if stage == 2:
        ranks.stop()  # by SIGKILL
    assert ranks.tell("mixed", stage=stage, seed=5, **FP16) == [None, None]
    assert ranks.tell("scale")[0] != scale
    assert ranks.tell("restore", run=str(run.directory)) == [[3, THREE]] * 2
    assert ranks.tell("scale")[0] == scale
    assert ranks.tell("contents")[0] == held
    assert ranks.tell("train_mixed", steps=3) == losses
