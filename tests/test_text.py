"""Numbers of runs in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcrun import text


@given(st.lists(st.integers(0, 60), unique=True))
def test_ranges_are_the_numbers(numbers: list[int]) -> None:
    found: list[int] = []
    for part in text.ranges(numbers):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


def test_in_words() -> None:
    assert text.numbers([3, 0, 1, 2, 7]) == "0-3, 7"
    assert text.numbers([]) == "none"
    assert text.runs([4]) == "run 4"
    assert text.runs([1, 0, 5]) == "runs 0-1,5"
    assert text.runs(range(0, 40, 2)) == "runs 0,2,4,6,8,10,12,14,… (20 runs)"
    assert [text.count(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
