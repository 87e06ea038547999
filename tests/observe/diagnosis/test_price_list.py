from __future__ import annotations

from typing import Any

import pytest

from hpcrun.observe.diagnosis.price_list import CPU, GPU, PriceList, kilowatt_hours, money_text


def test_prices_by_type() -> None:
    block = {"currency": "EUR", "gpu_hour": 2, "gpu_types": {"a100_80gb": 1.5}, "cpu_hour": 0.1}
    found = PriceList.of({"prices": block})
    assert found.hour(GPU, "A100-80GB") == 1.5
    assert found.hour(GPU, "h100") == found.hour(GPU) == 2.0
    assert found.money(10, CPU) == pytest.approx(1.0)
    assert money_text(1234.5, found.currency) == "1,234.50 EUR"


@pytest.mark.parametrize(
    "cluster",
    [{}, {"prices": None}, {"prices": []}, {"prices": {"gpu_hour": "much", "gpu_types": 3}}],
)
def test_without_a_sensible_price_there_is_none(cluster: dict[str, Any]) -> None:
    """A plan may be another user's, or older than prices are."""
    assert PriceList.of(cluster) == PriceList()
    assert PriceList.of(cluster).money(5, GPU) is None
    absurd = {"prices": {"gpu_hour": -1, "cpu_hour": float("nan"), "gpu_watts": True}}
    assert PriceList.of(absurd) == PriceList()


def test_words() -> None:
    assert money_text(0, "EUR") == "0.00 EUR"
    assert money_text(0.0012, "") == "0.0012"
    assert kilowatt_hours(10, 700) == 7
    assert kilowatt_hours(10, None) is None
