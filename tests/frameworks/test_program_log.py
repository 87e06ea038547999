"""The steps and the useful time by a program's own log."""

from __future__ import annotations

from tests.frameworks.program_log import LoggedLine, attempts, useful_seconds


def _lines(attempt: int, *told: tuple[float, str]) -> list[LoggedLine]:
    return [LoggedLine(attempt, moment, text) for moment, text in told]


def test_steps_of_an_epoch_and_ticks_after_a_checkpoint() -> None:
    epochs = r"\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_total>\d+)\]"
    (one,) = attempts(_lines(1, (1, "[0][ 9/10]"), (2, "[1][ 1/10]"), (3, "best")), epochs)
    assert (one.steps, one.end) == ([(9, 1), (11, 2)], 3)
    ticks = r"loading global_step(?P<at>\d+)|(?P<tick>Loss)"
    told = [*_lines(1, (1, "Loss"), (2, "Loss")), *_lines(2, (5, "loading global_step1"))]
    first, second = attempts([*told, *_lines(2, (6, "Loss"), (7, "Loss"))], ticks)
    assert [step for step, _ in first.steps] == [1, 2]
    assert [step for step, _ in second.steps] == [2, 3]


def test_steps_that_were_done_before_are_not_useful() -> None:
    first = _lines(1, *((10 + step, f"step {step}") for step in range(1, 6)))
    second = _lines(2, *((30 + step, f"step {step}") for step in range(3, 9)), (39, "saved"))
    told = attempts([*first, *second], r"step (?P<step>\d+)")
    # Five steps, then those after step 5 and what came after them.
    assert useful_seconds(told) == 5 + (39 - 35)
