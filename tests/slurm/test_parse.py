"""Slurm's forms of time, and the rows that its commands print."""

from __future__ import annotations

import pytest

from hpcrun.slurm.parse import array_size, parse_duration, parse_rows, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:06", 6), ("01:00", 60), ("1:00:00", 3600), ("2-03:04:05", 183845), ("INVALID", None)],
)
def test_how_long_a_job_has_run(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["N/A", "Unknown", "", "0", "NONE", "²", "9" * 400, "1" * 12])
def test_a_time_that_is_not_there(text: str) -> None:
    assert parse_time(text) is None


def test_times_in_both_forms() -> None:
    assert parse_time("1795179394") == 1795179394
    assert parse_time("2026-11-20T12:00:00") is not None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 5400), ("90:00", 5400), ("12:00:00", 43_200), ("2-12", 216_000)),
        *(("2-12:30", 217_800), ("2-12:30:15", 217_815), ("", None), ("1h", None), ("-1", None)),
        *(("²", None), ("٣", None), ("9" * 5000, None), ("1-" + "9" * 5000, None)),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


def test_rows() -> None:
    text = "1|a|b|c\nnotice\n2|x\n"
    assert parse_rows(text, ("id", "name")) == [
        {"id": "1", "name": "a|b|c"},
        {"id": "2", "name": "x"},
    ]


@pytest.mark.parametrize(
    ("size", "parameters", "most"),
    [
        ("1001", "", 1001),
        ("20001", "bf_continue,max_array_tasks=12000,defer", 12000),
        ("1001", "max_array_tasks=12000", 1001),
        ("0", "", 1),
        ("", "max_array_tasks=5", None),
    ],
)
def test_how_long_an_array_may_be(size: str, parameters: str, most: int | None) -> None:
    assert array_size({"MaxArraySize": size, "SchedulerParameters": parameters}) == most


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("59136K", 59136 << 10), ("812.50M", 851_968_000), ("1.50G", 3 << 29)),
        *(("2T", 2 << 40), ("0", 0), ("512", 512), ("", 0), ("16?", 0), ("K", 0), ("9" * 19, 0)),
    ],
)
def test_sizes_of_accounting(text: str, size: int) -> None:
    assert parse_size(text) == size
