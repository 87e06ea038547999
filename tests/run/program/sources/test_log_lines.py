"""Steps in what a program prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.log_lines import LogPattern, NewText
from hpcrun.state.metrics_file import Line


def test_a_pattern_with_steps_metrics_and_the_total() -> None:
    pattern = LogPattern(r"step (?P<step>[\d,]+)/(?P<total>\d+).* loss (?P<loss>\S+)")
    text = ("step 1,000/5000 | loss 0.5", "nothing", "\x1b[32mstep 1001/5000 | loss nan\x1b[0m")
    found = pattern.poll(Look(104.0, 100.0, text))
    assert found.total == 5000
    assert found.lines[0] == Line(1000, 102.0, {"loss": 0.5})
    assert found.lines[1][:2] == (1001, 104.0)
    assert pattern.poll(Look(106.0, 104.0, ("step x", "y" * 10_000))).lines == []


def test_steps_that_begin_again_with_each_epoch() -> None:
    pattern = LogPattern(r"Epoch: \[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_total>\d+)\]")
    text = ("Epoch: [0][ 9/16] Time", "Epoch: [2][ 1/16] Time", "Test: [1/4]")
    found = pattern.poll(Look(102.0, 100.0, text))
    assert found.lines == [Line(9, 101.0, {"epoch": 0}), Line(33, 102.0, {"epoch": 2})]
    assert found.total is None


def _steps(pattern: LogPattern, *text: str) -> list[int]:
    return [line.step for line in pattern.poll(Look(2.0, 1.0, text)).lines]


FIRST_EPOCHS = {
    # Those of eight epochs, whether the earlier attempts knew their numbers -> the steps.
    "from 0": (range(8), None, range(1, 9)),
    "from 1": (range(1, 9), None, range(1, 9)),
    "from 0, resumed": (range(5, 8), 0, range(6, 9)),
    "from 1, resumed": (range(5, 9), 1, range(5, 9)),
    "resumed, and nothing is known": (range(5, 9), None, range(5, 9)),
    "something before the first": (range(9), None, [1, 2, 3, 4, 5, 6, 7, 8, 8]),
}


@pytest.mark.parametrize("name", FIRST_EPOCHS)
def test_epochs_are_steps_and_all_of_them_are_done_at_the_end(name: str) -> None:
    epochs, first, expected = FIRST_EPOCHS[name]
    pattern = LogPattern(r"Epoch (?P<epoch>\d+)/(?P<total>\d+)", first_epoch=first)
    found = pattern.poll(Look(2.0, 1.0, tuple(f"Epoch {one}/8 loss 0.5" for one in epochs)))
    assert [line.step for line in found.lines] == [*expected]
    assert (found.total, found.unit) == (8, "epochs")
    assert found.first_epoch == (0 if name.startswith("from 0") else 1)


def test_parts_of_epochs_are_no_steps() -> None:
    pattern = LogPattern(r"'epoch': (?P<epoch>[\d.]+)")
    assert _steps(pattern, *(f"{{'loss': 1, 'epoch': {one}}}" for one in (0.5, 1.0, 1.5, 2.0))) == [
        *(0, 1, 1, 2)
    ]


def test_steps_of_epochs_that_begin_with_1_and_end_with_the_last() -> None:
    pattern = LogPattern(
        r"Epoch \[(?P<epoch>\d+)/(?P<epochs>\d+)\], Step \[(?P<step>\d+)/(?P<epoch_total>\d+)\]"
    )
    text = [f"Epoch [{e}/3], Step [{s}/200], Loss: 0.5" for e in (1, 2, 3) for s in (100, 200)]
    found = pattern.poll(Look(2.0, 1.0, tuple(text)))
    assert [line.step for line in found.lines] == [100, 200, 300, 400, 500, 600]
    assert found.total == 600


FALLING = {
    "an end that is known": (
        r"step (?P<step>\d+)/(?P<total>\d+)",
        [f"step {one}/30" for one in (10, 20, 30, 10, 20, 30, 10)],
        ([10, 20, 30, 40, 50, 60, 70], None),
    ),
    "an end that is not": (
        r"step (?P<step>\d+)",
        [f"step {one}" for one in (10, 20, 30, 10, 20, 30, 10)],
        ([10, 20, 30, 40, 50, 60, 70], None),
    ),
    "from 0": (
        r"step (?P<step>\d+)",
        [f"step {one}" for one in (0, 1, 2, 3, 0, 1)],
        ([0, 1, 2, 3, 4, 5], None),
    ),
    "the epoch is known, and not its length": (
        r"epoch (?P<epoch>\d+) step (?P<step>\d+)",
        [f"epoch {one} step {two}" for one in (1, 2) for two in (5, 10)],
        ([5, 10, 15, 20], None),
    ),
    "two ranks print the same": (
        r"step (?P<step>\d+)/(?P<total>\d+)",
        [f"step {one}/9" for one in (1, 2, 1, 3, 2, 3, 4, 4)],
        ([1, 2, 1, 3, 2, 3, 4, 4], 9),
    ),
    "two ranks print the same, and no end": (
        r"step (?P<step>\d+)",
        [f"step {one}" for one in (1, 2, 1, 3, 2, 3, 4, 4)],
        ([1, 2, 1, 3, 2, 3, 4, 4], None),
    ),
    "it begins over by itself": (
        r"step (?P<step>\d+)/(?P<total>\d+)",
        [f"step {one}/90" for one in (10, 20, 30, 10, 20, 30, 40)],
        ([10, 20, 30, 10, 20, 30, 40], 90),
    ),
}


@pytest.mark.parametrize("name", FALLING)
def test_steps_that_fall_go_on_where_an_epoch_ends(name: str) -> None:
    pattern, text, (steps, total) = FALLING[name]
    search = LogPattern(pattern)
    found = search.poll(Look(2.0, 1.0, tuple(text)))
    assert [line.step for line in found.lines] == steps
    assert found.total == total
    assert found.is_endless == (total is None and "ranks" not in name)


def test_lines_without_a_number_are_counted_on_from_what_was_done() -> None:
    asked: list[int] = []
    pattern = LogPattern(r"(?P<one_step>Loss): (?P<loss>\S+)", lambda: asked.append(1) or 40)
    assert pattern.poll(Look(101.0, 100.0, ("Loading",))).lines == []
    assert asked == []
    found = pattern.poll(Look(103.0, 101.0, ("Loss: 0.5", "Saved", "Loss: 0.25")))
    assert found.lines == [Line(41, 102.0, {"loss": 0.5}), Line(42, 103.0, {"loss": 0.25})]
    (line,) = pattern.poll(Look(104.0, 103.0, ("Loss: 0.125",))).lines
    assert (line.step, asked) == (43, [1])


def test_a_log_that_grows(tmp_path: Path) -> None:
    log = NewText(tmp_path / "rank-00000.log")
    assert log.read() == ()
    log.path.write_bytes(b"one\ntwo \xff\r 3/5\r 4/5")
    assert log.read() == ("one", "two \ufffd", " 3/5")
    with open(log.path, "ab") as stream:
        stream.write(b" more\nlast")
    assert log.read() == (" 4/5 more",)
    assert log.read(is_last=True) == ("last",)
