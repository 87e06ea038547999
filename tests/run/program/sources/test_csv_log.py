"""Lightning's metrics.csv, which is written a hundred rows at a time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.csv_log import CsvFile, LightningCsv


def _found(path: Path, modified: float) -> FoundFile:
    facts = path.stat()
    return FoundFile(path, facts.st_size, modified, facts.st_ino)


def test_rows_that_came_together_are_spread_over_the_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    source = LightningCsv()
    begun = "Epoch 0:   1%|  | 1/200 [00:02<00:10,  7.1it/s]"
    assert source.poll(Look(102.0, 100.0, (begun,), ())).lines == []
    path.write_text("epoch,step,loss\n0,49,1.5\n0,99,\n")
    found = source.poll(Look(121.0, 102.0, (), (_found(path, 120.0),)))
    assert [(line.step, line.time, line.values) for line in found.lines] == [
        (49, 100.0 + 49 / 99 * 20, {"epoch": 0.0, "loss": 1.5}),
        (99, 120.0, {"epoch": 0.0}),
    ]
    with open(path, "a") as stream:
        stream.write("1,149,1.0\n1,19")
    found = source.poll(Look(131.0, 121.0, (), (_found(path, 130.0),)))
    assert [(line.step, line.time) for line in found.lines] == [(149, 130.0)]


def _bar(epoch: int, step: int, elapsed: int) -> str:
    return f"Epoch {epoch}:  50%|=====     | {step}/80 [00:{elapsed:02}<00:10,  7.1it/s]"


def test_between_rows_of_epochs_the_bar_tells_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    source = LightningCsv()
    texts = (_bar(0, 10, 1), _bar(0, 20, 2), _bar(0, 80, 8), _bar(1, 10, 1))
    for at, text in enumerate(texts, 1):
        assert source.poll(Look(100.0 + 2 * at, 98.0 + 2 * at, (text,), ())).lines == []
    path.write_text("epoch,step,loss\n0,79,1.5\n")
    found = source.poll(Look(108.5, 108.0, (), (_found(path, 106.5),)))
    assert [(line.step, line.time, line.values) for line in found.lines] == [
        *((9, 102.0, {}), (19, 104.0, {})),
        (79, 106.0, {"epoch": 0.0, "loss": 1.5}),
        (89, 108.0, {}),
    ]
    # A minute later, and as the ranks have ended: without a row.
    assert source.poll(Look(110.0, 108.5, (_bar(1, 20, 2),), ())).lines == []
    late = source.poll(Look(139.0, 110.0, (_bar(1, 30, 31),), ())).lines
    assert [(line.step, line.time) for line in late] == [(99, 110.0), (109, 139.0)]
    last = source.poll(Look(139.5, 139.0, (_bar(1, 40, 31), _bar(1, 41, 31)), (), is_last=True))
    assert [line.step for line in last.lines] == [119, 120]


def test_a_bar_of_batches_that_are_no_steps_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    source = LightningCsv()
    # Two batches make a step.
    assert source.poll(Look(108.0, 106.0, (_bar(0, 80, 8),), ())).lines == []
    path.write_text("epoch,step,loss\n0,39,1.5\n")
    found = source.poll(Look(108.5, 108.0, (), (_found(path, 108.0),)))
    assert [line.step for line in found.lines] == [39]
    last = source.poll(Look(150.0, 108.5, (_bar(1, 40, 31),), (), is_last=True))
    assert last.lines == []


def test_first_rows_without_a_bar_are_of_the_time_since_the_last_look(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    source = LightningCsv()
    assert source.poll(Look(100.0, 99.0, (), ())).lines == []
    path.write_text("step,loss\n4,1.5\n9,1.0\n")
    found = source.poll(Look(101.0, 100.5, (), (_found(path, 100.9),)))
    assert [line.time for line in found.lines] == pytest.approx([100.4, 100.9])


def test_a_file_that_is_written_anew_with_another_column(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n2,0.4\n")
    file = CsvFile(path)
    assert [step for step, _ in file.read()[0]] == [1, 2]
    path.write_text("step,loss,val\n1,0.5,\n2,0.4,\n3,,0.9\n")
    assert file.read()[0] == [(3, {"val": 0.9})]


def test_a_file_of_an_earlier_attempt_goes_on_or_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "version_0" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step,loss\n1,0.5\n2,0.4\n")
    there = _found(path, 50.0)
    source = LightningCsv([there])
    assert source.poll(Look(100.0, 99.0, (), (there,))).lines == []
    with open(path, "a") as stream:
        stream.write("3,0.3\n")
    found = source.poll(Look(101.0, 100.0, (), (_found(path, 101.0),)))
    assert [line.step for line in found.lines] == [3]
    path.unlink()
    path.write_text("step,loss\n1,0.9\n")
    found = source.poll(Look(102.0, 101.0, (), (_found(path, 102.0),)))
    assert [line.step for line in found.lines] == [1]


@given(st.binary(max_size=300), st.sampled_from([b"step,a\n", b"", b'"step\n', b"\0\n"]))
def test_no_garbage_makes_it_raise(data: bytes, head: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "metrics.csv")
        path.write_bytes(head + random.Random(1).choice([b"1,2\n", b""]) + data)
        rows, _ = CsvFile(path).read()
        assert all(type(step) is int for step, _ in rows)
