"""Steps of several sources, attempts and epochs in one unit."""

from __future__ import annotations

import math

import pytest

from hpcrun.run.program.progress_source import (
    EarlierProgress,
    EpochNumbers,
    Found,
    OneUnit,
    number,
    plain,
)
from hpcrun.state.metrics_file import Line


def _found(*steps: int, total: int | None = None, unit: str = "bar of 100") -> Found:
    lines = [Line(step, 1000.0 + step, {}) for step in steps]
    return Found(lines, total=total, unit=unit)


def _steps(unit: OneUnit, name: str, found: Found) -> list[int]:
    lines = unit.taken(name, found, 2000.0)
    unit.note(lines, 2000.0)
    return [line.step for line in lines]


def test_a_better_source_that_counts_alike_takes_over() -> None:
    unit = OneUnit(EarlierProgress())
    assert _steps(unit, "progress_bar", _found(1, 50, 100)) == [1, 50, 100]
    assert _steps(unit, "tensorboard", _found(48, 98, unit="steps")) == [48, 98]
    assert (unit.source, unit.unit, unit.reached) == ("tensorboard", "bar of 100", 100)


def test_one_that_counts_something_else_gives_its_values_alone() -> None:
    """Keras' bars count batches, and its events epochs."""
    unit = OneUnit(EarlierProgress())
    _steps(unit, "keras_bar", _found(1, 50, 100, unit="steps"))
    epochs = Found([Line(0, 1050.5, {"val": 1.0}), Line(1, 1100.5, {"val": 0.5})])
    assert [(line.step, line.values) for line in unit.taken("tensorboard", epochs, 1101.0)] == [
        *((50, {"val": 1.0}), (100, {"val": 0.5}))
    ]
    assert unit.source == "keras_bar"
    assert _steps(unit, "keras_bar", _found(120, unit="steps")) == [120]


def test_of_few_steps_nobody_can_tell() -> None:
    unit = OneUnit(EarlierProgress())
    _steps(unit, "keras_bar", _found(1, unit="steps"))
    assert _steps(unit, "tensorboard", _found(0, unit="steps")) == [1]
    assert unit.source == "keras_bar"
    _steps(unit, "keras_bar", _found(50, unit="steps"))
    assert _steps(unit, "tensorboard", _found(49, unit="steps")) == [49]
    assert unit.source == "tensorboard"


EARLIER = EarlierProgress("progress_bar", "bar of 100", total=100, first=1, reached=45)


def test_a_program_that_counts_what_is_left_goes_on() -> None:
    unit = OneUnit(EARLIER)
    found = _found(1, 2, total=60, unit="bar of 60")
    assert _steps(unit, "progress_bar", found) == [41, 42]
    assert (unit.done, unit.unit) == (40, "bar of 100")
    assert _steps(unit, "progress_bar", _found(60, total=60, unit="bar of 60")) == [100]


def test_one_that_begins_over_or_counts_all_does_not() -> None:
    assert _steps(OneUnit(EARLIER), "progress_bar", _found(1, total=100)) == [1]
    assert _steps(OneUnit(EARLIER), "progress_bar", _found(41, total=60)) == [41]
    other = OneUnit(EARLIER)
    assert _steps(other, "progress_bar", _found(1, total=8, unit="bar of 8")) == [1]
    assert other.unit == "bar of 8", "92 steps were never done"


def test_what_a_better_source_counts_in_every_attempt() -> None:
    unit = OneUnit(EarlierProgress("tensorboard", "bar of 100", 100, reached=45))
    assert _steps(unit, "tensorboard", _found(46, unit="steps")) == [46]
    assert unit.unit == "bar of 100"
    changed = OneUnit(EarlierProgress("log", "steps", 100, reached=45))
    _steps(changed, "log", _found(3, unit="epochs"))
    assert changed.unit == "epochs"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("12", 12.0), ("-1.5e-3", -0.0015), (".5", 0.5), ("5.", 5.0), ("inf", math.inf)],
        *[("1,234", 1234.0), ("12,345,678.5", 12345678.5), ("1e6", 1e6)],
        # What stands around a value, as \\S+ takes it along.
        *[("0.123,", 0.123), ("91.2%", 91.2), ("(0.5)", 0.5), ("'0.5'}", 0.5), (" 7;", 7.0)],
        # A comma before decimals is none between thousands: 0,125 was read as 125.
        *[("0,125", None), ("1,2345", None), ("12,5", None), ("1234,567", None), (",5", None)],
        *[("0:12:33", None), ("3.2GB", None), ("1.2.3", None), ("", None), ("-", None)],
        *[("e5", None), ("x" * 100, None), ("9" * 100, None)],
    ],
)
def test_a_number_is_read_as_it_was_meant_or_not_at_all(text: str, value: float | None) -> None:
    assert number(text) == value


def test_codes_of_a_terminal_are_left_out() -> None:
    assert plain("\x1b[1m12/313\x1b[0m \x1b[32m━━\x1b[0m\x08\x08") == "12/313 ━━"


def test_the_last_epoch_tells_too_with_which_number_they_begin() -> None:
    epochs = EpochNumbers(0)
    assert epochs.before(7, 8) == 7
    assert epochs.before(8, 8) == 7
