"""Blocks behave as the dataclasses that `dataclasses.dataclass` makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hpcrun.state.spec.experiment import Objective, Resources, Wandb


def test_as_any_dataclass() -> None:
    assert Objective("accuracy", mode="max") == Objective(metric="accuracy", mode="max")
    assert Objective("accuracy") != Objective()
    assert Objective() != Wandb()
    assert repr(Objective()) == "Objective(metric='loss', mode=None)"
    assert dataclasses.replace(Resources(nodes=2), mem="1G").nodes == 2
    assert dataclasses.asdict(Objective()) == {"metric": "loss", "mode": None}


def test_defaults_are_not_shared() -> None:
    Resources().sbatch["exclusive"] = True
    assert Resources().sbatch == {}


def test_fields_that_do_not_exist() -> None:
    unchecked: Any = Objective
    with pytest.raises(TypeError, match="Objective has no field metrik"):
        unchecked(metrik="loss")
    with pytest.raises(TypeError, match="Objective has 2 fields, not 3"):
        unchecked("loss", "min", 3)
