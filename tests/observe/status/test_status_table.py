"""Numbers as they are looked at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.status.status_table import amount, bar, sparkline


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, "    "), (1, "████"), (0.5, "██  "), (0.53125, "██▏ "), (7, "████"), (-1, "    ")],
)
def test_bar(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_sparkline() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert sparkline([1, 1, math.nan, 5, 5, math.inf], 2) == "▁█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline([3]) == sparkline([]) == ""


@given(st.lists(st.floats(), max_size=200), st.integers(1, 40))
def test_a_sparkline_is_never_wider_than_asked(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (5.5, "5.5"), (950, "950"), (999.7, "1k"), (12345, "12.3k"), (4.56e6, "4.56M")],
)
def test_amount(value: float, text: str) -> None:
    assert amount(value) == text
