"""Small text for people."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.text import (
    age,
    brief,
    duration,
    entry,
    json_line,
    json_pieces,
    listed,
    one_line,
    parse_age,
    plural,
    range_text,
    ranges,
    runs_text,
    short_ends,
    signal_name,
    size,
    time_spent,
    visible,
    whole_number,
)

POISON = "\x1b]0;title\x07\x1b[2J\x9b2J\x90\x7f\u202e\u2066\u2028\ufeff\udcff\ud800\x00\x0b"


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


def test_visible_text_sends_nothing_to_a_terminal() -> None:
    assert visible(POISON) == (
        r"\x1b]0;title\x07\x1b[2J\x9b2J\x90\x7f\u202e\u2066\u2028\ufeff\xff\ud800\x00\x0b"
    )
    assert visible("plain é 日本 \N{NO-BREAK SPACE} 👍\n\tcode\r\n") == (
        "plain é 日本 \N{NO-BREAK SPACE} 👍\n\tcode\r\n"
    )
    assert visible("over\rwritten") == r"over\x0dwritten"


@given(st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp", "Ll"))))
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert not {each for each in shown.replace("\r\n", "") if each < " "} - {"\n", "\t"}
    shown.encode()


def test_a_cell_is_one_line() -> None:
    assert one_line("two\n lines\x1b[K") == r"two lines\x1b[K"
    assert one_line("two  words") == "two  words"


def test_further_lines_of_a_log_entry_are_indented() -> None:
    forged = "name\n2026-01-01T00:00:00 hpcrun: completed\n"
    assert entry(forged) == "name\n    2026-01-01T00:00:00 hpcrun: completed"
    assert entry("a\rb") == r"a\x0db"


def test_json_is_strict() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    value = {"a": [float("nan"), {"b": (float("-inf"), 1.5)}], float("inf"): "\udcff\x1b\u202e"}
    assert "\n" not in json_line(value)
    for text in (json_line(value), "".join(json_pieces(value))):
        assert text.isascii()
        assert text.replace("\n", "").isprintable()
        found = json.loads(text, parse_constant=refuse)
        assert found == {"a": [None, {"b": [None, 1.5]}], "inf": "\udcff\x1b\u202e"}


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_PLAIN = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | _KEYS, inner),
)


def _finite(value: Any) -> Any:
    """Return the value as JSON can hold it: infinity is null, and a key in words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [*map(_finite, value)] if isinstance(value, (list, tuple)) else value


@given(_PLAIN, _PLAIN)
def test_json_is_that_of_the_standard_library(one: object, other: object) -> None:
    value = [one, {"a": other, "b": [one, one]}, {"a": other, "b": (one, Path("x"))}, one]
    for whole in (one, value, {"runs": value, "one": one}):
        text = json.dumps(_finite(whole), indent=2, default=str)
        assert "".join(json_pieces(whole)) == text


def test_json_of_many_runs_comes_in_pieces() -> None:
    shared = {"key": ["x" * 1000]}
    value = {"runs": [{"number": number, "spec": shared} for number in range(3000)]}
    pieces = [*json_pieces(value)]
    assert len(pieces) > 2
    assert max(map(len, pieces)) < 1_100_000
    assert "".join(pieces) == json.dumps(value, indent=2)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_a_whole_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1 ", "²", "٣", "1e3", "0x1", "1_0", "9" * 19])
def test_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


def test_short_ends_tell_keys_apart() -> None:
    keys = ["config.lr", "config.a.x", "config.b.x", "x"]
    assert [*short_ends(keys).values()] == ["lr", "a.x", "b.x", "x"]


def test_a_brief_text_keeps_its_ends_in_one_line() -> None:
    assert brief("a\n b") == "a b"
    told = brief("begin\n" + "x" * 5000 + "\nend")
    assert told.startswith("begin xxx")
    assert told.endswith("xxx end")
    assert len(told) < 300


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), (" 2h ", 7200), ("1.5d", 129600), ("2w", 1209600)],
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "30y", "1M", "-1d", "d", "1 d", "1d2h", ".5d", "٣d"])
def test_no_age(text: str) -> None:
    assert parse_age(text) is None
