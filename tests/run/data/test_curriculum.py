"""Curricula."""

from __future__ import annotations

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.data.curriculum import Ramp


def test_a_ramp() -> None:
    ramp = Ramp(64, 1024, steps=100, multiple=64)
    values = [ramp(step) for step in range(1, 200)]
    assert (values[0], values[98], values[99], values[-1]) == (64, 960, 1024, 1024)
    assert values == sorted(values)
    assert {value % 64 for value in values} == {0}
    assert Ramp(5, 5, 1)(1) == 5
    assert [Ramp(5, 9, 3, multiple=4)(step) for step in (1, 2, 3)] == [5, 5, 9]


@pytest.mark.parametrize("arguments", [(0, 4, 2), (5, 4, 2), (1, 4, 0), (1, 4, 2, 0)])
def test_bad_input(arguments: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="first is at least 1"):
        Ramp(*arguments)
