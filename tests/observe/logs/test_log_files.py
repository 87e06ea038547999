"""Lines of logs by time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe.logs import log_files
from hpcrun.observe.logs.tail import Source, Tail
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Ten lines of eight bytes; two more every ten seconds, from 1000 on, but for the last two."""
    paths = AttemptPaths(tmp_path / "1")
    paths.directory.mkdir()
    path = paths.rank_log(0)
    path.write_text("".join(f"line {number:02}\n" for number in range(10)))
    os.utime(path, (1050, 1050))
    for index in range(1, 5):
        line = {"time": 1000.0 + 10 * index, "sizes": {"0": 16 * index, "1": 999}}
        files.append(paths.log_sizes, line)
    with open(paths.log_sizes, "a") as stream:
        stream.write('{"time": 1041.0, "siz')
    return Source(path, "study", 0, 1, "worker", rank=0)


@pytest.mark.parametrize(
    ("moment", "first"),
    [(900, 0), (1009, 0), (1010, 2), (1015, 2), (1039, 6), (1040, 8), (1049, 8), (1051, 10)],
)
def test_where_to_begin(source: Source, moment: float, first: int) -> None:
    tail = Tail(source)
    tail.begin_at(log_files.offset_since(source, moment))
    assert (
        tail.read()[0].split()
        == b"".join(b"line %02d\n" % number for number in range(first, 10)).split()
    )


@pytest.mark.parametrize("ahead", [-30.0, 30.0])
def test_the_clock_of_the_node_that_kept_the_record_is_wrong(source: Source, ahead: float) -> None:
    """The storage knows when the last line was written, and so which were."""
    os.utime(AttemptPaths(source.path.parent).log_sizes, (1040 - ahead,) * 2)
    os.utime(source.path, (1050 - ahead,) * 2)
    for moment, first in ((1009, 0), (1010, 2), (1039, 6), (1040, 8), (1051, 10)):
        assert log_files.offset_since(source, moment - ahead) == 8 * first
    times = [mark.time + ahead for mark in log_files.marks_until_now(source)]
    assert times == [1010, 1020, 1030, 1040, 1050]


def test_a_mark_in_the_middle_of_a_line(source: Source) -> None:
    tail = Tail(source)
    tail.begin_at(20)
    assert tail.read()[0].startswith(b"line 02\n")


def test_by_when_lines_were_written(source: Source) -> None:
    tail = Tail(source)
    tail.marks.extend(log_files.size_marks(source))
    found = []
    read = 1
    while read:
        block, read = tail.read()
        found += [(line[5:], tail.written) for line in block.split(b"\n")[:-1]]
    assert [when for _, when in found] == [
        *sorted([1010.0, 1020.0, 1030.0, 1040.0] * 2),
        None,
        None,
    ]
    assert [int(number) for number, _ in found] == list(range(10))


def test_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    path.write_text("x\n" * 10)
    agent = Source(path, "study", 0, 1, "agent", node="n1")
    assert log_files.size_marks(agent) == []
    assert log_files.offset_since(agent, time.time() - 60) == 0
    assert log_files.offset_since(agent, time.time() + 60) == 20
    assert (
        log_files.offset_since(Source(tmp_path / "none", "study", 0, 1, "worker", rank=0), 0.0) == 0
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2d ", 172_800)]
)
def test_so_long_ago(text: str, seconds: float) -> None:
    assert log_files.parse_moment(text, now=1e9) == 1e9 - seconds


def test_a_date_and_time() -> None:
    expected = time.mktime((2026, 11, 22, 14, 30, 0, 0, 0, -1))
    for text in ("2026-11-22T14:30", "2026-11-22 14:30:00"):
        assert log_files.parse_moment(text) == expected
    assert log_files.parse_moment("1970-01-02T00:00:00+00:00") == 86400


@pytest.mark.parametrize("text", ["", "soon", "10", "-5m", "10 m", "2026-13-01"])
def test_neither(text: str) -> None:
    with pytest.raises(UsageError, match="neither so long ago nor a time"):
        log_files.parse_moment(text)
