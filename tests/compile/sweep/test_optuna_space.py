"""The forms of a space, as Optuna has them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from optuna import distributions

from hpcrun.compile.sweep import optuna_space
from hpcrun.errors import HpcrunError


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"choice": ["a", None]}, distributions.CategoricalDistribution(["a", None])),
        ({"uniform": [0.0, 1.0]}, distributions.FloatDistribution(0, 1)),
        ({"loguniform": [0.1, 1.0]}, distributions.FloatDistribution(0.1, 1, log=True)),
        ({"int": [1, 4], "when": {"config.a": ["b"]}}, distributions.IntDistribution(1, 4)),
        ({"int_loguniform": [1, 4]}, distributions.IntDistribution(1, 4, log=True)),
    ],
)
def test_each_form(form: dict[str, Any], expected: Any) -> None:
    assert optuna_space.distribution(form) == expected


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(HpcrunError, match="Optuna cannot be imported") as caught:
        optuna_space.load()
    assert caught.value.hint == "pip install 'hpcrun[search]'"
