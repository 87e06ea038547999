"""The steps and the useful time by a program's own log."""

from __future__ import annotations

from tests.frameworks.program_log import LoggedLine, attempts, printed_seconds, useful_seconds


def _lines(attempt: int, *told: tuple[float, str]) -> list[LoggedLine]:
    return [LoggedLine(attempt, moment, text) for moment, text in told]


def test_steps_of_an_epoch_and_lines_without_a_number() -> None:
    epochs = r"\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_total>\d+)\]"
    (one,) = attempts(_lines(1, (1, "[0][ 9/10]"), (2, "[1][ 1/10]"), (3, "best")), epochs)
    assert (one.steps, one.end) == ([(9, 1), (11, 2)], 3)
    bars = r"^Epoch (?P<epoch>\d+)/|^ *(?P<step>\d+)/(?P<epoch_total>20) "
    drawn = (2, "\x1b[1m 1/20\x1b[0m loss: 2\x08\x08"), (3, "Epoch 5/6"), (4, "20/20 loss: 1")
    (one,) = attempts(_lines(1, (1, "Epoch 4/6"), *drawn), bars)
    assert one.steps == [(61, 2), (100, 4)]
    told = [*_lines(1, (1, "Loss"), (2, "Loss")), *_lines(2, (5, "loading"), (6, "Loss"))]
    first, second = attempts(told, "Loss", {2: 1})
    assert (first.steps, second.steps) == ([(1, 1), (2, 2)], [(2, 6)])


def test_steps_that_were_done_before_are_not_useful() -> None:
    first = _lines(1, *((10 + step, f"step {step}") for step in range(1, 6)))
    second = _lines(2, *((30 + step, f"step {step}") for step in range(3, 9)), (39, "saved"))
    told = attempts([*first, *second], r"step (?P<step>\d+)")
    # Five steps, then those after step 5 and what came after them.
    assert useful_seconds(told) == 5 + (39 - 35)


def test_what_is_printed_of_an_end_is_no_work() -> None:
    lines = _lines(1, (1, "step 1"), (2, "step 2"), (3, "test"), (30, "RuntimeError: closed"))
    (one,) = attempts([*lines, *_lines(1, (31, "bye"))], r"step (?P<step>\d+)")
    assert one.end == 3
    for said in ("Traceback (most recent call last):", "slurmstepd-n1: error: *** STEP 2.2 ON n1"):
        bar = _lines(1, (1, "1/9"), (2, "2/9"), (30, f"2/9 [01:00]{said}"))
        (one,) = attempts(bar, r"(?P<step>\d+)/9")
        assert one.end == 2


def test_the_times_that_a_program_prints_of_its_steps_count_once() -> None:
    pattern = r"iter (?P<step>\d+), (?P<milliseconds>[\d.]+)ms"
    first = _lines(1, (1, "iter 0, 500.0ms"), (2, "iter 1, 250ms"))
    told = attempts([*first, *_lines(2, (9, "iter 1, 999ms"), (10, "iter 2, 250ms"))], pattern)
    assert printed_seconds(told) == 1.0
    assert printed_seconds(attempts(first, r"iter (?P<step>\d+)")) is None
