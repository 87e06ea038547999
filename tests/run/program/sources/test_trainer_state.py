"""The Trainer of Hugging Face, by what it prints and what it saves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.trainer_state import NAME, TrainerState, printed
from hpcrun.state.metrics_file import Line


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{'loss': 0.5, 'epoch': 0.1}", {"loss": 0.5, "epoch": 0.1}),
        (" {'loss': '2.341', 'lr': '4.9e-05', 'epoch': '0.1'}\n",
         {"loss": 2.341, "lr": 4.9e-5, "epoch": 0.1}),
        ("{'eval_loss': 1, 'eval_what': 'text', 'epoch': 1.0}", {"eval_loss": 1.0, "epoch": 1.0}),
        ("{'loss': 0.5}", None),
        ("{'epoch': 1}", None),
        ("{'a': {'loss': 1, 'epoch': 2}}", None),
        ("{'" + "a" * 5000 + "': 1, 'epoch': 2}", None),
    ],
)  # fmt: skip
def test_what_it_prints(text: str, found: dict[str, float] | None) -> None:
    assert printed(text) == found


def _bar(step: int) -> str:
    return f" 10%|#   | {step}/50 [00:10<04:20,  3.7it/s]"


def _state(path: Path, step: int, *history: dict[str, Any], at: float = 100.0) -> FoundFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": step, "max_steps": 50, "log_history": history}))
    os.utime(path, (at, at))
    facts = path.stat()
    return FoundFile(path, facts.st_size, facts.st_mtime, facts.st_ino)


def test_printed_lines_have_the_step_of_the_bar_that_is_drawn_below_them(tmp_path: Path) -> None:
    source = TrainerState()
    text = (_bar(8), "{'loss': 0.5, 'epoch': 0.2}", _bar(10), _bar(12))
    found = source.poll(Look(100.0, 99.0, text))
    assert found.lines == [Line(10, 99.5, {"loss": 0.5, "epoch": 0.2})]
    assert found.total == 50
    entry = {"step": 10, "loss": 0.5, "epoch": 0.2}
    later = {"step": 20, "loss": 0.4, "epoch": 0.4}
    state = _state(tmp_path / "checkpoint-20" / NAME, 20, entry, later, at=110.0)
    found = source.poll(Look(120.0, 100.0, (), (state,)))
    assert [(line.step, line.values["loss"]) for line in found.lines] == [(20, 0.4)], "10 is known"


def test_a_bar_of_a_preparation_does_not_stand_in_the_way_of_the_first_steps() -> None:
    """TRL's first 30 steps were all step 30, and the time before it was of no kind."""
    source = TrainerState()
    text = ["Tokenizing train dataset: 100%|##| 400/400 [00:00<00:00, 999 examples/s]"]
    text += ["  0%|    | 0/50 [00:00<?, ?it/s]"]
    for step in (1, 2, 3):
        text += [
            f"  2%|    | {step}/50 [00:00<00:09, 9it/s]",
            f"{{'loss': 0.5, 'epoch': 0.{step}}}",
        ]
        text += [f"  2%|    | {step}/50 [00:00<00:09, 9it/s]"]
    found = source.poll(Look(111.0, 100.0, tuple(text)))
    assert [(line.step, line.time) for line in found.lines] == [(1, 104.0), (2, 107.0), (3, 110.0)]
    assert found.total == 50
    evaluated = ("100%|##| 8/8 [00:03<00:00, 2it/s]", "{'eval_loss': 0.5, 'epoch': 0.3}")
    drawn = ("  8%|    | 4/50 [00:09<00:30, 9it/s]",)
    found = source.poll(Look(120.0, 111.0, (*evaluated, *drawn)))
    assert [line.step for line in found.lines] == [4]


def test_without_bars_the_state_has_the_steps_and_the_print_the_times(tmp_path: Path) -> None:
    source = TrainerState()
    for at, epoch in ((103.0, "0.2"), (106.0, "0.4")):
        text = f"{{'loss': '0.5', 'epoch': '{epoch}'}}"
        assert source.poll(Look(at, at - 1, (text,))).lines == []
    history = [{"step": 10 * n, "loss": 0.5, "epoch": 0.2 * n} for n in (1, 2, 3)]
    state = _state(tmp_path / "checkpoint-30" / NAME, 30, *history, at=109.0)
    found = source.poll(Look(110.0, 109.0, (), (state,)))
    times = [(line.step, line.time) for line in found.lines]
    assert times == [(10, 103.0), (20, 106.0), (30, 109.0)]
    assert found.total == 50
    assert source.poll(Look(111.0, 110.0, (), (state,))).lines == []


def test_states_of_earlier_attempts_are_not_new(tmp_path: Path) -> None:
    before = _state(tmp_path / "checkpoint-10" / NAME, 10, {"step": 10, "loss": 1.0, "epoch": 0.2})
    source = TrainerState([before])
    assert source.poll(Look(100.0, 99.0, (), (before,))).lines == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"log_history": 5}',
        '{"log_history": [1, null, {"step": "x"}, {"step": -1}]}',
        '{"max_steps": 1e999, "log_history": [{"step": 1, "loss": [1]}], "global_step": {}}',
        '{"log_history": [{"step": 1' + "0" * 290 + "}]}",
    ],
)
def test_what_is_no_state_is_left_out(text: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(text)
    found = TrainerState().poll(Look(1.0, 0.0, (), (FoundFile(path, 1, 1.0, 1),)))
    assert all(not line.values for line in found.lines)


def test_a_fifo_in_its_place_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    look = Look(1.0, 0.0, (), (FoundFile(tmp_path / NAME, 1, 1.0, 1),))
    assert TrainerState().poll(look).lines == []


def test_the_history_that_a_resumed_trainer_brings_along_is_not_its_own(tmp_path: Path) -> None:
    first = [{"step": step, "loss": 1.0 / step, "epoch": step / 50} for step in (10, 20, 30)]
    there = _state(tmp_path / "checkpoint-30" / NAME, 30, *first, at=50.0)
    source = TrainerState([there])
    source.poll(Look(100.0, 99.0))
    # It goes on from step 20, as if the newest checkpoint had been passed over.
    mine = {"step": 40, "loss": 0.01, "epoch": 0.8}
    other = {"step": 30, "loss": 0.02, "epoch": 0.6}
    state = _state(tmp_path / "checkpoint-40" / NAME, 40, *first[:2], other, mine, at=110.0)
    found = source.poll(Look(120.0, 100.0, (), (there, state)))
    assert [line.step for line in found.lines] == [30, 40]
    assert found.lines[0].values["loss"] == 0.02
