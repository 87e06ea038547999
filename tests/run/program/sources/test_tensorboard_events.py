"""Scalars of several event files of one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.program.file_search import search
from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.tensorboard_events import TensorBoardEvents
from tests.support.event_files import event, record, tensor_event, write


def _look(root: Path, time: float = 100.0) -> Look:
    return Look(time, time - 1, (), tuple(search(root)))


def test_files_of_earlier_attempts_and_of_our_own_tracker_are_not_read(tmp_path: Path) -> None:
    old = write(tmp_path / "runs" / "events.out.tfevents.1.host", event(5, 50.0, loss=1.0))
    source = TensorBoardEvents(list(search(tmp_path)))
    write(tmp_path / "events.out.tfevents.0000000001.hpcrun", event(9, 99.0, loss=1.0))
    assert source.poll(_look(tmp_path)).lines == []
    write(old, event(6, 60.0, loss=0.5))
    write(tmp_path / "runs" / "events.out.tfevents.2.host", event(7, 70.0, loss=0.4))
    found = source.poll(_look(tmp_path))
    assert [(line.step, line.time) for line in found.lines] == [(6, 60.0), (7, 70.0)]
    assert source.poll(_look(tmp_path)).lines == []


def test_what_lightning_writes_before_it_trains_is_no_step(tmp_path: Path) -> None:
    """Each run that resumed was told as one that began over at step 0."""
    placeholder = event(0, 9.0, hp_metric=-1.0)
    write(tmp_path / "events.out.tfevents.1.h", placeholder, event(501, 10.0, loss=0.5))
    write(tmp_path / "version_1/events.out.tfevents.2.h", event(0, 8.0, hp_metric=0.25))
    found = TensorBoardEvents().poll(_look(tmp_path))
    assert [(line.step, line.values) for line in found.lines] == [
        (0, {"hp_metric": 0.25}),
        (501, {"loss": 0.5}),
    ]


def test_numbers_behind_many_pictures_are_found(tmp_path: Path) -> None:
    """They were found only where the file grew afterwards."""
    picture = record(b"\x09" + bytes(8) + b"\x10\x01" + bytes(200_000))
    name = tmp_path / "events.out.tfevents.1.v2"
    write(name, *[picture] * 8, event(100, 10.0, loss=1.0))
    source, look = TensorBoardEvents(), _look(tmp_path)
    found = source.poll(look)
    assert (found.lines, found.is_more) == ([], True)
    found = source.poll(look)
    assert ([line.step for line in found.lines], found.is_more) == ([100], False)
    write(name, event(101, 11.0, loss=1.0)[:-8])
    assert source.poll(_look(tmp_path)).is_more is False


@pytest.mark.parametrize("batch", [8, None])
def test_samples_of_deepspeeds_monitor_are_steps(tmp_path: Path, batch: int | None) -> None:
    """The loss is written with the samples before its step, the rate with those after it."""
    source = TensorBoardEvents((), batch)
    loss, rate = "Train/Samples/train_loss", "Train/Samples/lr"
    events = [event(40, 10.0, **{loss: 1.0}), event(48, 11.0, **{rate: 0.1})]
    events += [event(48, 12.0, **{loss: 0.9}), event(56, 13.0, **{rate: 0.2})]
    write(tmp_path / "monitor" / "events.out.tfevents.1.host", *events)
    write(tmp_path / "lightning" / "events.out.tfevents.2.host", event(7, 14.0, loss=0.9))
    found = [(line.step, *line.values) for line in source.poll(_look(tmp_path)).lines]
    expected = [(5, loss), (6, rate), (6, loss), (7, rate)]
    assert found == [*expected[batch is None :], (7, "loss")]


def test_one_tag_in_two_directories_and_epochs_beside_steps(tmp_path: Path) -> None:
    source = TensorBoardEvents()
    name = "events.out.tfevents.1.v2"
    write(tmp_path / "train" / name, event(100, 10.0, loss=1.0), event(200, 20.0, loss=0.5))
    write(tmp_path / "validation" / name, tensor_event(1, 15.0, "loss", 2.0))
    found = source.poll(_look(tmp_path))
    assert [(line.step, line.values) for line in found.lines] == [
        (100, {"loss": 1.0}),
        (100, {"validation/loss": 2.0}),
        (200, {"loss": 0.5}),
    ]
    # What another file's writer kept back belongs to its own step.
    write(tmp_path / "train2" / name, event(150, 12.0, lr=1.0))
    assert [line.step for line in source.poll(_look(tmp_path)).lines] == [150]
