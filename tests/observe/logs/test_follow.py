"""Following: real files, written by threads while they are followed."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcrun.observe.logs.follow import LOCAL, REMOTE, Follower, Pace
from hpcrun.observe.logs.tail import Source

QUIET_AT_ONCE = dataclasses.replace(LOCAL, linger=0.1, cold=0.1)
REMOTE_SOON = dataclasses.replace(REMOTE, interval=0.1, linger=0.5, cold_looks=100)


def source(path: Path, rank: int = 0) -> Source:
    return Source(path, "study", 0, 1, "worker", rank=rank)


def texts(follower: Follower) -> Iterator[str]:
    for block in follower.blocks():
        yield from (line.decode() for line in block.lines())


class Following:
    """A follower in a thread, and what it gave so far."""

    def __init__(self, discover: Callable[[bool], list[Source]], **options: object) -> None:
        self.lines: list[tuple[int | None, str]] = []
        self.done = threading.Event()
        self.follower = Follower(discover, self.done.is_set, **{"check": 0.05, **options})  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for block in self.follower.blocks():
            self.lines += [(block.source.rank, line.decode()) for line in block.lines()]

    def wait_for(self, count: int, timeout: float = 10) -> None:
        deadline = time.monotonic() + timeout
        while len(self.lines) < count:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def texts(self, rank: int = 0) -> list[str]:
        return [text for found, text in self.lines if found == rank]


@contextmanager
def following(discover: Callable[[bool], list[Source]], **options: object) -> Iterator[Following]:
    found = Following(discover, **options)
    found.thread.start()
    try:
        yield found
    finally:
        found.done.set()
        found.thread.join(20)
        assert not found.thread.is_alive()


def append(path: Path, data: str | bytes) -> None:
    with open(path, "ab") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank-00000.log"


def test_what_is_there_and_what_comes(log: Path) -> None:
    append(log, "a\nb")
    with following(lambda final: [source(log)]) as found:
        found.wait_for(1)
        append(log, "c\n")
        found.wait_for(2)
        append(log, "last, without an end")
    assert found.texts() == ["a", "bc", "last, without an end"]


def test_latency_is_about_the_poll_interval(log: Path) -> None:
    append(log, "start\n")
    delays = []
    with following(lambda final: [source(log)]) as found:
        found.wait_for(1)
        for number in range(20):
            began = time.monotonic()
            append(log, f"{number}\n")
            found.wait_for(number + 2)
            delays.append(time.monotonic() - began)
    assert sorted(delays)[15] < 0.5


def test_a_file_that_appears_later(log: Path) -> None:
    with following(lambda final: [source(log)] if log.exists() else []) as found:
        time.sleep(0.2)
        append(log, "x\n")
        found.wait_for(1)
    assert found.texts() == ["x"]


def test_a_source_whose_file_does_not_exist_yet(log: Path) -> None:
    with following(lambda final: [source(log)]) as found:
        time.sleep(0.2)
        append(log, "x\n")
        found.wait_for(1)
    assert found.texts() == ["x"]


def test_written_in_the_last_moment(log: Path) -> None:
    append(log, "a\n")
    late = log.with_name("late.log")

    def discover(final: bool) -> list[Source]:
        if final:
            append(log, "b\n")
            append(late, "c\n")
        return [source(log)] + ([source(late, 1)] if late.exists() else [])

    with following(discover) as found:
        found.wait_for(1)
    assert found.lines == [(0, "a"), (0, "b"), (1, "c")]


@pytest.mark.parametrize("pace", [LOCAL, QUIET_AT_ONCE, REMOTE_SOON])
def test_truncation_begins_again(log: Path, pace: Pace) -> None:
    append(log, "one\ntwo\n")
    with following(lambda final: [source(log)], pace=pace) as found:
        found.wait_for(2)
        log.write_text("")
        time.sleep(0.5)
        append(log, "three\n")
        found.wait_for(3)
    assert found.texts() == ["one", "two", "three"]


def test_truncated_and_written_beyond_where_it_was(log: Path) -> None:
    """What the size of a file cannot tell."""
    append(log, "one\ntwo, torn")
    with following(lambda final: [source(log)]) as found:
        found.wait_for(1)
        log.write_text("three\nfour\nand so on, for longer than before\n")
        found.wait_for(5)
    expected = ["one", "two, torn", "three", "four", "and so on, for longer than before"]
    assert found.texts() == expected


def test_a_renamed_file_is_read_to_its_end_before_its_successor(log: Path) -> None:
    append(log, "one\n")
    with open(log, "ab", buffering=0) as writer, following(lambda final: [source(log)]) as found:
        found.wait_for(1)
        log.rename(log.with_name("old"))
        writer.write(b"two\nthree, torn")
        append(log, "four\n")
        found.wait_for(4)
    assert found.texts() == ["one", "two", "three, torn", "four"]


def test_what_is_there_of_an_attempt_comes_before_the_next(tmp_path: Path) -> None:
    def of(attempt: int, rank: int) -> Source:
        path = tmp_path / "runs/0/attempts" / str(attempt) / f"rank-0000{rank}.log"
        return Source(path, "study", 0, attempt, "worker", rank=rank)

    every = [of(attempt, rank) for attempt in (1, 2) for rank in (0, 1)]
    for one in every[:2]:
        one.path.parent.mkdir(parents=True, exist_ok=True)
        append(one.path, "first\n" * 300_000 + "torn")
    found: list[int | None] = []

    def discover(final: bool) -> list[Source]:
        if found and not every[2].path.exists():
            every[2].path.parent.mkdir()
            for one in every[2:]:
                append(one.path, "second\n")
        return [one for one in every if one.path.exists()]

    pace = dataclasses.replace(LOCAL, discover=0.0)
    for block in Follower(discover, lambda: len(found) > 10, pace=pace, check=0.0).blocks():
        found.extend([block.source.attempt] * len(block.lines()))
    assert found == sorted(found, key=lambda attempt: attempt or 0)
    assert found.count(1) == 600_002
    assert found.count(2) == 2


def test_a_source_that_ended_is_looked_at_no_more(log: Path) -> None:
    append(log, "one\n")
    ended = threading.Event()
    with following(
        lambda final: [source(log)], ended=lambda source: ended.is_set(), pace=QUIET_AT_ONCE
    ) as found:
        found.wait_for(1)
        append(log, "two, torn")
        ended.set()
        found.wait_for(2)
        time.sleep(0.3)
        append(log, "too late\n")
        time.sleep(0.3)
    assert found.texts() == ["one", "two, torn"]


@pytest.mark.parametrize("pace", [LOCAL, QUIET_AT_ONCE, REMOTE_SOON])
def test_replacement_by_another_file(log: Path, pace: Pace) -> None:
    append(log, "one\n")
    with following(lambda final: [source(log)], pace=pace) as found:
        found.wait_for(1)
        other = log.with_name("new")
        other.write_text("two\nthree\n")
        time.sleep(0.5)
        os.replace(other, log)
        found.wait_for(3)
    assert found.texts() == ["one", "two", "three"]


def test_tail_counts_only_for_what_was_there(log: Path) -> None:
    append(log, "".join(f"{number}\n" for number in range(100)))
    later = log.with_name("later.log")

    def discover(final: bool) -> list[Source]:
        return [source(log)] + ([source(later, 1)] if later.exists() else [])

    with following(discover, begin=lambda one: one.begin_with(2)) as found:
        found.wait_for(2)
        append(later, "x\ny\nz\n")
        found.wait_for(5)
    assert found.texts(0) == ["98", "99"]
    assert found.texts(1) == ["x", "y", "z"]


def test_tail_zero_shows_only_what_comes(log: Path) -> None:
    append(log, "old\n")
    with following(lambda final: [source(log)], begin=lambda one: one.begin_with(0)) as found:
        time.sleep(0.3)
        append(log, "new\n")
        found.wait_for(1)
    assert found.texts() == ["new"]


def test_carriage_returns_and_bad_bytes(log: Path) -> None:
    with following(lambda final: [source(log)]) as found:
        for percent in range(0, 100, 20):
            append(log, f"{percent}%\r")
            time.sleep(0.05)
        append(log, b"done \xff\n")
        found.wait_for(1)
    assert found.texts() == ["done \ufffd"]


@pytest.mark.parametrize("pace", [LOCAL, QUIET_AT_ONCE, REMOTE_SOON])
def test_many_files_each_in_order_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Pace
) -> None:
    monkeypatch.setattr("hpcrun.observe.logs.follow.descriptors", lambda: 5)
    files = [tmp_path / f"{number}.log" for number in range(40)]
    for path in files:
        path.touch()
    sources = [source(path, rank) for rank, path in enumerate(files)]
    with following(lambda final: sources, pace=pace) as found:
        for number in range(50):
            for path in files:
                append(path, f"line {number} of {path.name}\n")
            time.sleep(0.2 if number % 20 == 19 else 0)
        found.wait_for(50 * len(files), timeout=30)
    for rank, path in enumerate(files):
        assert found.texts(rank) == [f"line {number} of {path.name}" for number in range(50)]


def test_a_slow_answer_whether_it_is_over_does_not_stop_the_lines(log: Path) -> None:
    append(log, "a\n")
    asked = threading.Event()
    answer = threading.Event()

    def over() -> bool:
        asked.set()
        return answer.wait(20)

    lines: list[str] = []
    follower = Follower(lambda final: [source(log)], over, check=0.0)
    thread = threading.Thread(target=lambda: lines.extend(texts(follower)))
    thread.start()
    assert asked.wait(5)
    append(log, "b\n")
    deadline = time.monotonic() + 5
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lines == ["a", "b"]
    answer.set()
    thread.join(5)
    assert not thread.is_alive()


def test_an_error_while_asking_is_raised(log: Path) -> None:
    def over() -> bool:
        raise OSError("no such root any more")

    with pytest.raises(OSError, match="no such root"):
        list(Follower(lambda final: [], over).blocks())


def test_files_are_closed(log: Path) -> None:
    append(log, "a\n")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    generator = Follower(lambda final: [source(log)]).blocks()
    assert next(generator).data == b"a\n"
    generator.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
