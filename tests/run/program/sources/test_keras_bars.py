"""The bars of Keras, in the forms that its versions print."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.keras_bars import KerasBars
from hpcrun.run.program.sources.log_lines import NewText
from hpcrun.state.metrics_file import Line


def _keras_3(step: int, total: int, metrics: str) -> str:
    """An update as keras.utils.Progbar of Keras 3 writes it, over the one before."""
    width = len(str(total))
    bar = f"\x1b[1m{step:{width}}/{total}\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m"
    return "\x08" * 70 + f"\r{bar} \x1b[1m4s\x1b[0m 14ms/step - {metrics}"


def _keras_2(step: int, total: int, metrics: str) -> str:
    left = "4s 14ms/step" if step == total else "ETA: 4s"
    return "\x08" * 70 + f"\r{step:3}/{total} [=====>......] - {left} - {metrics}"


def _fit(form: object, first: int = 1) -> str:
    assert callable(form)
    text = "Model: sequential\n"
    for epoch in range(first, 4):
        text += f"Epoch {epoch}/3\n"
        for step in (1, 50, 100):
            text += form(step, 100, f"accuracy: 0.9{epoch}00 - loss: 3.0000e-0{epoch}")
        text += form(100, 100, f"accuracy: 0.9{epoch}00 - loss: 3.0000e-0{epoch} - val_loss: 0.5")
        text += "\n"
        # Evaluations have bars of their own.
        text += form(8, 8, "loss: 7.0") + "\n"
    return text


def _lines(text: str, tmp_path: Path, parts: int = 7) -> tuple[list[Line], int | None]:
    """Read what a log gets in parts, each a second after the other."""
    log, bars = NewText(tmp_path / "rank-00000.log"), KerasBars()
    data, found, total = text.encode(), [], None
    size = len(data) // parts + 1
    for at in range(parts + 1):
        with open(log.path, "ab") as stream:
            stream.write(data[at * size : (at + 1) * size])
        look = Look(at + 1.0, float(at), log.read(at == parts), is_last=at == parts)
        polled = bars.poll(look)
        found += polled.lines
        total = polled.total or total
    return found, total


@pytest.mark.parametrize("form", [_keras_3, _keras_2], ids=["Keras 3", "Keras 2"])
@pytest.mark.parametrize("first", [1, 2], ids=["from the first epoch", "resumed"])
def test_steps_are_those_of_all_epochs(form: object, first: int, tmp_path: Path) -> None:
    found, total = _lines(_fit(form, first), tmp_path)
    steps = [line.step for line in found]
    assert steps == sorted(steps)
    assert (steps[-1], total) == (300, 300)
    assert {100, 200, 300}.issuperset({step for step in steps if step % 100 == 0})
    assert first * 100 in steps
    assert found[-1].values == {"accuracy": 0.93, "loss": 3e-3, "val_loss": 0.5}
    assert all("val_loss" not in line.values or line.step % 100 == 0 for line in found)
    assert min(steps) > 100 * (first - 1)


def test_one_line_an_epoch(tmp_path: Path) -> None:
    """``verbose=2``"""
    text = "".join(
        f"Epoch {epoch}/2\n60/60 - 5s - 83ms/step - accuracy: 0.9 - loss: 0.{epoch}\n"
        for epoch in (1, 2)
    )
    found, total = _lines(text, tmp_path)
    assert [(line.step, line.values["loss"]) for line in found] == [(60, 0.1), (120, 0.2)]
    assert total == 120


def test_the_length_of_the_first_epoch_may_be_unknown(tmp_path: Path) -> None:
    text = "Epoch 1/2\n"
    for step in (1, 20, 40):
        text += f"\r{step:7}/Unknown \x1b[1m1s\x1b[0m 14ms/step - loss: 0.5"
    text += "\nEpoch 2/2\n" + _keras_3(20, 40, "loss: 0.4") + _keras_3(40, 40, "loss: 0.3") + "\n"
    found, total = _lines(text, tmp_path)
    assert (found[-1].step, total) == (80, 80)
    assert 40 in [line.step for line in found]


def test_two_ranks_and_two_fits(tmp_path: Path) -> None:
    """Two ranks print the same; what another ``fit`` does comes after the first."""
    text = ""
    for _ in range(2):
        for epoch in (1, 2):
            text += f"Epoch {epoch}/2\n" * 2
            for step in (10, 20):
                text += 2 * (_keras_3(step, 20, "loss: 0.5") + "\n")
    found, total = _lines(text, tmp_path)
    steps = [line.step for line in found]
    assert steps == sorted(steps)
    assert (steps[-1], total) == (80, 80)


def test_bars_without_an_epoch_are_those_of_something_else(tmp_path: Path) -> None:
    assert _lines(_keras_3(8, 8, "loss: 0.5") + "\n12/16 tests passed\n", tmp_path) == ([], None)
