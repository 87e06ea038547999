"""Small text for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.text import (
    age,
    duration,
    listed,
    plural,
    range_text,
    ranges,
    runs_text,
    signal_name,
    size,
    time_spent,
)


@given(st.lists(st.integers(0, 60), unique=True))
def test_ranges_are_the_numbers(numbers: list[int]) -> None:
    found: list[int] = []
    for part in ranges(numbers):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


def test_in_words() -> None:
    assert range_text([3, 0, 1, 2, 7]) == "0-3, 7"
    assert range_text([]) == "none"
    assert runs_text([4]) == "run 4"
    assert runs_text([1, 0, 5]) == "runs 0-1,5"
    assert runs_text(range(0, 40, 2)) == "runs 0,2,4,6,8,10,12,14,… (20 runs)"
    assert [plural(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert plural(2000, "step", ",") == "2,000 steps"


def test_lists_are_cut_short() -> None:
    assert listed([], 2) == ""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "{}", "c", "d"], 2) == "a, {} and 2 more"
    assert listed(["a", "b", "c"], 1, "; ", "; …") == "a; …"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1, "0 s"), (45, "45 s"), (59.7, "1 min"), (3_590, "1 h 00 min")),
        *((11_220, "3 h 07 min"), (86_400 * 2 + 3_600 * 3, "2 d 03 h")),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (600, "10 min"), (86400, "24 h"), (1e6, "12 d")],
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_time_spent() -> None:
    told = [time_spent(seconds) for seconds in (9, 119, 120, 7199, 7200, 9e6)]
    assert told == ["9 s", "119 s", "2 min", "120 min", "2.0 h", "2,500.0 h"]


def test_sizes() -> None:
    told = [size(count) for count in (0, 512, 4200, 99_600, 1_300_000_000)]
    assert told == ["0 B", "512 B", "4.2 kB", "100 kB", "1.3 GB"]


def test_names_of_signals() -> None:
    assert [signal_name(number) for number in (9, 41)] == ["SIGKILL", "signal 41"]
