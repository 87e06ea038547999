from __future__ import annotations

import pytest

from hpcrun import gpu_catalogue
from hpcrun.observe.diagnosis.price_list import PriceList
from hpcrun.tools.estimate import run_costs
from hpcrun.tools.estimate.model_facts import of_number
from hpcrun.tools.estimate.run_costs import JobShape, TrainingPace
from hpcrun.tools.estimate.training_setup import TrainingSetup

H100 = gpu_catalogue.find("h100")
MODEL = of_number(10**9, "given", {})
SETUP = TrainingSetup(1, 8, precision="bf16", accumulation_dtype="bf16")
PRICES = PriceList("EUR", gpu_hour=2.0, cpu_hour=0.1, gpu_types={"H100": 3.0})


def job(**more: object) -> JobShape:
    given = {"nodes": 1, "gpus": 8, "cpus": 64, "gpu_type": "h100", "limit_seconds": 7200.0}
    return JobShape(**{**given, "steps": 1000, "tokens_per_step": 10**6, **more})  # type: ignore[arg-type]


def test_the_assumed_pace_is_a_share_of_the_peak() -> None:
    pace = run_costs.assumed_pace(MODEL, SETUP, H100, 10**6, 0.5)
    rate = 8 * 989.4e12 * 0.5 / (6 * 1e9)
    assert pace.tokens_per_second == pytest.approx(rate)
    assert pace.step_seconds == pytest.approx(1e6 / rate)
    assert pace.source == "assumed: 50 % of the peak of h100"
    assert run_costs.assumed_pace(MODEL, SETUP, None, 10**6, 0.5).step_seconds is None
    assert run_costs.assumed_pace(MODEL, SETUP, H100, None, 0.5).step_seconds is None


def test_hours_energy_and_money() -> None:
    pace = TrainingPace(18.0, None, "measured by a/0")
    found = run_costs.costs(MODEL, SETUP, job(), pace, PRICES, H100)
    assert (found.seconds, found.hours, found.unit) == (18_000, 40, "GPU-hours")
    assert (found.money, found.currency) == (120, "EUR")
    assert found.energy_kwh == 28
    assert (found.limit_hours, found.limit_money, found.starts) == (16, 48, 3)
    assert found.checkpoint_bytes == 14e9
    assert (found.save_seconds, found.save_source) == (14, "assumed: 1 GB/s of each node")


def test_processors_and_unknowns() -> None:
    unknown = TrainingPace(None, None, "")
    found = run_costs.costs(MODEL, SETUP, job(gpus=0), unknown, PRICES, None, (3.0, "measured"))
    assert (found.unit, found.devices, found.limit_hours) == ("CPU-hours", 64, 128)
    assert found.limit_money == pytest.approx(12.8)
    assert (found.hours, found.energy_kwh, found.money, found.starts) == (None,) * 4
    assert found.save_seconds == 3.0
    none = run_costs.costs(MODEL, SETUP, job(), unknown, PriceList(), H100)
    assert (none.limit_money, none.currency) == (None, "")
