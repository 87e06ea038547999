"""The record of how long the ranks' logs were when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcrun.run.node import log_sizes
from hpcrun.run.node.log_sizes import LogSizeRecord, LogSizes
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    paths = AttemptPaths(tmp_path / "runs" / "0" / "attempts" / "1")
    paths.directory.mkdir(parents=True)
    return paths


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    for rank in (2, 3):
        (tmp_path / "scratch" / f"rank-{rank}.pid").write_text("1")
    return tmp_path / "scratch"


def next_look(sizes: LogSizes, scratch: Path, paths: AttemptPaths) -> dict[int, int]:
    """What the next look brings, which an agent is told one report later."""
    sizes.changed(scratch, paths)
    assert sizes._thread is not None
    sizes._thread.join(10)
    found = sizes.changed(scratch, paths)
    sizes._thread.join(10)
    return found


def test_what_has_grown_is_told_once(
    paths: AttemptPaths, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sizes, "EVERY", 0.0)
    sizes = LogSizes()
    assert next_look(sizes, scratch, paths) == {}
    paths.rank_log(2).write_text("four")
    assert next_look(sizes, scratch, paths) == {2: 4}
    paths.rank_log(3).write_text("seven..")
    assert next_look(sizes, scratch, paths) == {3: 7}
    assert next_look(sizes, scratch, paths) == {}


def test_the_output_of_rank_0_has_its_metrics_too(
    tmp_path: Path, paths: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sizes, "EVERY", 0.0)
    (tmp_path / "scratch").mkdir()
    for rank in (0, 3):
        (tmp_path / "scratch" / f"rank-{rank}.pid").write_text("1")
        paths.rank_log(rank).write_text("four")
    paths.metrics.write_text("seven..")
    sizes = LogSizes()
    assert next_look(sizes, tmp_path / "scratch", paths) == {0: 4, 3: 4}
    assert sizes.output() == {0: 11, 3: 4}


def test_nobody_looks_between(paths: AttemptPaths, scratch: Path) -> None:
    sizes = LogSizes()
    next_look(sizes, scratch, paths)
    paths.rank_log(2).write_text("four")
    assert next_look(sizes, scratch, paths) == {}


def test_an_attempt_begins_anew(
    paths: AttemptPaths, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sizes, "EVERY", 0.0)
    sizes = LogSizes()
    paths.rank_log(2).write_text("four")
    assert next_look(sizes, scratch, paths) == {2: 4}
    after = AttemptPaths(paths.directory.parent / "2")
    after.directory.mkdir()
    after.rank_log(2).write_text("four")
    assert next_look(sizes, scratch, after) == {2: 4}


def written(record: LogSizeRecord) -> None:
    if record._thread is not None:
        record._thread.join(10)


def test_the_supervisor_keeps_it(paths: AttemptPaths) -> None:
    sizes = {0: 10, 1: 20}
    record = LogSizeRecord(paths, 8, sizes)
    before = time.time() - 0.1
    record.turn()
    assert record._thread is None, "a short attempt needs no record"
    record._keep_at = 0.0
    record.turn()
    written(record)
    assert sizes == {}
    [line] = files.read_lines(paths.log_sizes)
    assert line["sizes"] == {"0": 10, "1": 20}
    assert before <= line["time"] <= time.time() + 0.1
    sizes[0] = 30
    record.turn()
    written(record)
    assert sizes == {0: 30}
    assert len(list(files.read_lines(paths.log_sizes))) == 1


def test_it_is_done_without_where_nothing_can_be_written(tmp_path: Path) -> None:
    record = LogSizeRecord(AttemptPaths(tmp_path / "nothing"), 1, {0: 1})
    record._keep_at = 0.0
    record.turn()
    written(record)
