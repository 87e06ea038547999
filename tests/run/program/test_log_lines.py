"""Steps in what a program prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.program.log_lines import BAR_WAITS, LogPattern, NewText, ProgressBars, bar
from hpcrun.run.program.progress_source import Look
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


TRAINING = "  2%|▏         | 12/500 [00:10<04:20,  3.7it/s]"


@pytest.mark.parametrize(
    ("text", "step", "total"),
    [
        (TRAINING, 12, 500),
        ("\x1b[A 37/1000", None, None),
        ("training: 100%|██████████| 8/8 [1:00:00<00:00, 2.00s/it, loss=1.2]", 8, 8),
        ("Epoch 2:  25%|██▌       | 25/100 [00:03<00:10,  7.1it/s, v_num=0]", 225, None),
        ("Epoch 2/3:  25%|██▌       | 25/100 [00:03<00:10,  7.1it/s]", 125, 300),
        ("Map: 100%|██████████| 1000/1000 [00:01<00:00, 900 examples/s]", None, None),
        ("Loading checkpoint shards:  50%|█████     | 1/2 [00:00<00:00]", None, None),
        ("Validation DataLoader 0:  50%|█████     | 1/2 [00:00<00:00]", None, None),
        ("the loss fell by 12/500 [00:10<", None, None),
        ("50%|" + "x" * 5000 + "| 1/2 [00:00<", None, None),
    ],
)
def test_bars(text: str, step: int | None, total: int | None) -> None:
    found = bar(text)
    assert (found and found.step, found and found.total) == (step, total)


def test_the_bar_of_the_training_is_told_from_those_of_evaluations() -> None:
    bars = ProgressBars()
    looks = [
        (1.0, ("  0%|   | 0/500 [00:00<?, ?it/s]", "  1%|   | 1/500 [00:01<08:00,  1it/s]")),
        (20.0, (" 10%|   | 20/500 [00:20<08:00,  1it/s]", " 50%|   | 1/13 [00:00<00:01,  9it/s]")),
    ]
    for time, text in looks:
        assert bars.poll(Look(time, time, text)).lines == [], "it may be a preparation's"
    now = 1.0 + BAR_WAITS
    found = bars.poll(Look(now, 20.0, (" 12%|   | 30/500 [00:30<08:00,  1it/s]",)))
    assert [(line.step, line.time) for line in found.lines] == [(1, 1.0), (20, 20.0), (30, now)]
    assert found.total == 500
    ended = ("100%|###| 500/500 [08:20<00:00,  1it/s]", " 50%|   | 2/900 [00:00<00:01,  9it/s]")
    found = bars.poll(Look(500.0, 490.0, ended, is_last=True))
    assert [line.step for line in found.lines] == [500]


def test_a_program_that_ends_has_come_to_the_newest_update() -> None:
    bars = ProgressBars()
    texts = [f" {step}%|   | {step}/500 [00:{step:02}<08:00,  1it/s]" for step in (40, 41, 42)]
    assert [line.step for line in bars.poll(Look(100.0, 99.0, (texts[0],))).lines] == [40]
    last = bars.poll(Look(100.4, 100.2, tuple(texts), is_last=True))
    assert [line.step for line in last.lines] == [41, 42]
    assert bars.poll(Look(100.5, 100.4, (), is_last=True)).lines == []


def test_a_short_training_shows_its_steps_at_its_end() -> None:
    bars = ProgressBars()
    found = bars.poll(Look(3.0, 2.0, (TRAINING,), is_last=True))
    assert [line.step for line in found.lines] == [12]
