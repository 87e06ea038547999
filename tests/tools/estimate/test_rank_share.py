"""The share of a model that one rank has."""

from __future__ import annotations

from typing import Any

from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.rank_share import is_known, share
from hpcrun.tools.estimate.training_setup import TrainingSetup


def _setup(**more: Any) -> TrainingSetup:
    return TrainingSetup(**{"stage": 2, "ranks": 2, "accumulation": 2, **more})


def test_partitions_touch_whole_parameters() -> None:
    # Ranks have elements 0 to 8, and 8 to 16: the second parameter lies in both.
    model = ModelFacts(16, 16, "given", sizes=(6, 6, 4))
    own = share(model, _setup())
    assert (own.part, own.touched, own.largest) == (8, 12, 6)
    # One that is longer than a partition is all that those in its middle touch.
    assert share(ModelFacts(100, 100, "given", sizes=(2, 98)), _setup(ranks=10)).touched == 100


def test_stage_3_pads_each_parameter_and_keeps_small_ones() -> None:
    model = ModelFacts(1013, 1013, "given", sizes=(1000, 13))
    own = share(model, _setup(stage=3, ranks=4, persistence=100))
    assert (own.part, own.persistent) == (250 + 4, 13)
    assert share(model, _setup(stage=3, ranks=1, persistence=100)).persistent == 0


def test_a_tensor_group_divides_what_its_plan_names() -> None:
    model = ModelFacts(
        *(1300, 1200, "given"), sizes=(1000, 100, 100), frozen_sizes=(100,), divided=(0, 1, 1)
    )
    setup = _setup(model_ranks=4, tensor=4)
    assert not is_known(ModelFacts(1200, 1200, "given"), setup)
    assert is_known(model, setup)
    assert not is_known(model, _setup(model_ranks=8, tensor=4))
    own = share(model, setup)
    assert (own.whole, own.largest) == (1000 + 25 + 25, 1000)
    # Without a plan the two largest may be whole on each rank.
    unknown = ModelFacts(1200, 1200, "given", sizes=(1000, 100, 50, 50))
    assert share(unknown, setup).whole == 1100 + 100 // 4 + 1
    assert share(unknown, setup, even=True).whole == 250 + 25 + 13 + 13
