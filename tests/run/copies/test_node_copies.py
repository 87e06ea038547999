"""A node's copies as its agent sees them."""

from __future__ import annotations

import collections
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.copies import copied_files, node_copies
from hpcrun.run.copies.copied_files import CopySource
from hpcrun.run.copies.node_copies import DataCopies
from tests.support.waiting import until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "tokens").mkdir(parents=True)
    (made / "tokens" / "0.bin").write_bytes(os.urandom(2_000))
    (made / "index").write_text("0.bin")
    return made


@pytest.fixture
def node(tmp_path: Path) -> Path:
    made = tmp_path / "tmp" / "hpcrun-start"
    made.mkdir(parents=True)
    return made


class _Data:
    """Sources by their paths, and the places where they are found."""

    def __init__(self, *paths: Path) -> None:
        self.paths, self.places = paths, dict[str, Path]()

    def sources(self) -> list[CopySource]:
        return [CopySource(path.name, str(path)) for path in self.paths]

    def show(self, places: Mapping[CopySource, Path]) -> None:
        self.places = {source.name: place for source, place in places.items()}


def _answer(staging: DataCopies) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What it says in the end, and before."""
    told: list[dict[str, Any]] = []
    staging.begin()
    until(lambda: (staging.turn(told.append), told and told[-1]["type"] != "copying")[1], timeout=9)
    return told[-1], told[:-1]


def test_it_is_kept_for_the_next_attempt_and_removed_at_the_end(data: Path, node: Path) -> None:
    shown = _Data(data / "tokens", data / "index")
    staging = DataCopies(node.parent, [shown])
    for copied in (2_005, 0):
        answer, _ = _answer(staging)
        assert answer["report"].items() >= {"files": 2, "bytes": 2_005, "copied": copied}.items()
        assert (shown.places["tokens"] / "0.bin").read_bytes() == (
            data / "tokens/0.bin"
        ).read_bytes()
        assert shown.places["index"] != data / "index"
    (data / "index").write_text("other")
    assert _answer(staging)[0]["report"]["copied"] == 5
    assert shown.places["index"].read_text() == "other"
    staging.close()
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208


def test_without_room_ranks_read_it_where_it_is(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usage = collections.namedtuple("usage", "total used free")(10_000, 8_500, 1_500)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    shown = _Data(data / "tokens", data / "index")
    staging = DataCopies(node.parent, [shown])
    report = _answer(staging)[0]["report"]
    (note,) = report["notes"]
    assert "tokens is not copied, and read where it is: it has 2.0 kB" in note
    assert note in capfd.readouterr().out
    assert report["bytes"] == 5
    assert shown.places["tokens"] == data / "tokens"
    assert shown.places["index"] != data / "index"
    staging.close()
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208


def test_a_source_that_keeps_changing_is_read_where_it_is(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, times = copied_files._copy_file, 1

    def changes(source: Any, file: Any, place: Path, meter: Any) -> None:
        nonlocal times
        times -= 1
        if times >= 0:
            os.utime(data / "index", (times, times))
        before(source, file, place, meter)

    monkeypatch.setattr(copied_files, "_copy_file", changes)
    staging = DataCopies(node.parent, [_Data(data / "index")])
    assert _answer(staging)[0]["report"]["notes"] == [], "it changed once"
    staging.close()
    times, shown = 2, _Data(data / "index")
    staging = DataCopies(node.parent, [shown])
    (note,) = _answer(staging)[0]["report"]["notes"]
    assert note.endswith("index is another file than a moment ago, twice")
    assert shown.places["index"] == data / "index"
    staging.close()


def test_what_this_node_does_not_see_fails(data: Path, node: Path) -> None:
    staging = DataCopies(node.parent, [_Data(data / "nothing")])
    answer, _ = _answer(staging)
    assert answer["type"] == "failed"
    assert "nothing cannot be read: No such file" in answer["message"]
    staging.close()


def test_a_slow_copy_says_how_far_it_is_and_can_be_stopped(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_copies, "SAY_EVERY", 0.1)
    before = copied_files._copy_file

    def slowly(source: Any, file: Any, place: Path, meter: Any) -> None:
        before(source, file, place, meter)
        for _ in range(100):
            time.sleep(0.02)
            meter.add(0)

    monkeypatch.setattr(copied_files, "_copy_file", slowly)
    staging = DataCopies(node.parent, [_Data(data / "tokens", data / "index")])
    answer, told = _answer(staging)
    assert answer["type"] == "copied"
    assert {"type": "copying", "done": 2_000, "total": 2_005} in told
    assert "stages data: 2.0 kB of 2.0 kB" in capfd.readouterr().out
    staging.close()
    staging.begin()
    time.sleep(0.2)
    began = time.monotonic()
    staging.close()
    assert time.monotonic() - began < 1.5
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208
