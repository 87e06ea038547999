"""Event files of TensorBoard: whole, torn and of something else, and several of one program."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.run.program.file_search import search
from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources import tensorboard_events
from hpcrun.run.program.sources.tensorboard_events import EventFile, Scalars, TensorBoardEvents
from hpcrun.state import files
from tests.support.event_files import event, record, tensor_event, write


def test_what_tensorboard_itself_writes(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto import event_pb2, summary_pb2

    log = writer.EventFileWriter(str(tmp_path))
    for step in (0, 10, 2**40):
        value = summary_pb2.Summary.Value(tag="train/loss", simple_value=0.25)
        summary = summary_pb2.Summary(value=[value])
        log.add_event(event_pb2.Event(wall_time=1.7e9 + step % 7, step=step, summary=summary))
    log.close()
    (path,) = tmp_path.iterdir()
    assert EventFile(path).read(1 << 20) == [
        Scalars(step, 1.7e9 + step % 7, {"train/loss": 0.25}) for step in (0, 10, 2**40)
    ]


def test_a_scalar_of_tensorflow_and_a_step_below_zero() -> None:
    data = tensor_event(3, 5.0, "epoch_loss", 1.5) + event(-1, 6.0, loss=2.0)
    assert tensorboard_events.parse(data) == (
        [Scalars(3, 5.0, {"epoch_loss": 1.5}), Scalars(-1, 6.0, {"loss": 2.0})],
        len(data),
    )


def test_a_file_that_grows_is_read_where_it_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "e", event(1, 1.0, loss=1.0), event(2, 2.0, loss=2.0)[:-3])
    file = EventFile(path)
    assert [one.step for one in file.read(1 << 20)] == [1]
    assert file.read(1 << 20) == []
    write(path, event(2, 2.0, loss=2.0)[-3:], event(3, 3.0, loss=3.0))
    assert [one.step for one in file.read(1 << 20)] == [2, 3]


def test_long_records_are_skipped_unread(tmp_path: Path) -> None:
    picture = record(bytes(tensorboard_events.MOST_RECORD + 1))
    path = write(tmp_path / "e", event(1, 1.0, a=1.0), picture * 3, event(2, 2.0, a=1.0))
    file = EventFile(path)
    steps = [one.step for _ in range(5) for one in file.read(1000)]
    assert steps == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 500,
        struct.pack("<Q", 1 << 60) + bytes(100),
        record(b"\xff" * 40),
        record(b"\x2a\xff\xff\xff\x7f"),
        record(b"\x0a" * 9),
        record(b"\x09" + struct.pack("<d", float("nan")) + b"\x10\x01"),
        b"{'loss': 1}\n" * 50,
    ],
)
def test_what_is_no_event_gives_none(data: bytes, tmp_path: Path) -> None:
    file = EventFile(write(tmp_path / "e", data))
    assert file.read(1 << 20) == []
    assert file.read(1 << 20) == []


@given(st.integers(), st.integers(1, 60))
def test_no_garbage_makes_it_raise(seed: int, flips: int) -> None:
    chance = random.Random(seed)
    data = bytearray(b"".join(event(step, 1.0 + step, loss=0.5, lr=1e-3) for step in range(20)))
    for _ in range(flips):
        data[chance.randrange(len(data))] = chance.randrange(256)
    found, used = tensorboard_events.parse(bytes(data[: chance.randrange(len(data))]))
    assert len(found) <= 20
    assert used >= -1


def test_a_fifo_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e")
    with pytest.raises(files.Refused):
        EventFile(tmp_path / "e").read(1000)


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
