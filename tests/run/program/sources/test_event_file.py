"""TensorBoard's event files, whole, torn and of something else."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.run.program.sources import event_file
from hpcrun.run.program.sources.event_file import EventFile, Scalars
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
    assert event_file.parse(data) == (
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
    picture = record(bytes(event_file.MOST_RECORD + 1))
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
    found, used = event_file.parse(bytes(data[: chance.randrange(len(data))]))
    assert len(found) <= 20
    assert used >= -1


def test_a_fifo_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e")
    with pytest.raises(files.Refused):
        EventFile(tmp_path / "e").read(1000)
