"""What is printed of blocks of lines, and what a terminal gets to see."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcrun.observe.logs import render
from hpcrun.observe.logs.log_files import LogChoice, sources
from hpcrun.observe.logs.render import LineFilter, Presenter, Printer, read
from hpcrun.observe.logs.tail import LineBlock, Source
from hpcrun.observe.read.selection import Finder, Selected
from tests.support.experiment import Experiment


def of(attempt: int, rank: int, path: Path = Path("/runs/0/attempts")) -> Source:
    return Source(path / str(attempt) / str(rank), "study", 0, attempt, "worker", rank=rank)


def runs(tmp_path: Path, world: int) -> tuple[Experiment, list[Selected]]:
    study = Experiment(tmp_path)
    study.submit((0,), world=world)
    study.start(0, world=world)
    return study, Finder(tmp_path).resolve(["study"])


def presenter(selected: list[Selected], ranks: int = 2) -> Presenter:
    return Presenter(Printer(selected), ranks=lambda source: range(ranks))


def test_lines_of_attempts_that_come_in_turns_are_all_shown(tmp_path: Path) -> None:
    _, selected = runs(tmp_path, 2)
    shown = presenter(selected)
    made = {attempt: of(attempt, 0) for attempt in (1, 2)}
    out = b"".join(
        shown.block(LineBlock(made[attempt], b"line %d\n" % number))
        for number, attempt in enumerate((1, 2, 1, 2, 1, 2))
    )
    out += shown.rest()
    assert sorted(line[-6:] for line in out.splitlines() if line.startswith(b"r0")) == [
        b"line %d" % number for number in range(6)
    ]


def test_what_was_there_already_is_not_kept_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "LEAST_WAITING", 1000)
    monkeypatch.setattr(render, "CHUNK", 1000)
    _, selected = runs(tmp_path, 2)
    shown = presenter(selected)
    ranks = [of(1, rank) for rank in range(2)]
    printed = most = 0
    for number in range(200):
        for one in ranks:
            data = b"".join(b"step %d, line %d\n" % (number, line) for line in range(20))
            printed += shown.block(LineBlock(one, data)).count(b"\n")
        most = max(most, (number + 1) * 20 - printed)
    rest = shown.rest()
    assert printed + rest.count(b"\n") == 200 * 20
    assert most < 600
    assert rest.startswith(b"r0-1 (2) | ")


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """Allow so many more than are open already, as other tests of this process may leave some."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_ranks_than_files_can_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, selected = runs(tmp_path, 300)
    for rank in range(300):
        study.log(0, 1, rank, f"common\nof {rank}\n")
    monkeypatch.setattr(render, "descriptors", lambda: 40)
    with few_descriptors(100):
        out = b"".join(read(sources(selected), Printer(selected)))
    assert len(out.splitlines()) == 301
    assert out.startswith(b"r0-299 (300) | common\n")


def test_raw_is_raw(tmp_path: Path) -> None:
    study, selected = runs(tmp_path, 1)
    data = b"a\r\nb\rc\xff\x1b[2J\n" + b"x" * 3_000_000 + b"\ntorn"
    study.log(0, 1, 0, "").write_bytes(data)
    printer = Printer(selected, raw=True)
    assert b"".join(read(sources(selected), printer, fold=False, raw=True)) == data


def test_attempts_without_a_line_have_no_heading(tmp_path: Path) -> None:
    study, selected = runs(tmp_path, 1)
    study.log(0, 1, 0, "one\n")
    for attempt in (2, 3):
        study.start(0, attempt, world=1)
        study.log(0, attempt, 0, "three\n" if attempt == 3 else "two\n")
    found = sources(selected, LogChoice(attempt="all"))
    chosen = LineFilter(grep=re.compile("one|three"))
    assert b"".join(read(found, Printer(selected), chosen)).splitlines() == [
        b"one",
        b"--- study/0: attempt 3 on node1 ---",
        b"three",
    ]


def test_the_batch_log_is_that_of_the_attempts_job(tmp_path: Path) -> None:
    """A run that was submitted twice has two; without a choice the newest is shown."""
    study, _ = runs(tmp_path, 1)
    study.submit(job_id="200")
    study.start(0, 2, job_id="200", submission=2)
    logs = [study.paths.submission(n).batch_log(job) for n, job in ((1, "100"), (2, "200"))]
    for log in logs:
        log.write_text("said\n")
    chosen = Finder(tmp_path).resolve(["study"])
    for attempt, expected in ((1, logs[:1]), (2, logs[1:]), (None, logs[1:]), ("all", logs)):
        found = sources(chosen, LogChoice(streams="batch", attempt=attempt))
        assert [source.path for source in found] == expected


def test_what_is_highlighted_is_text_and_no_colour(tmp_path: Path) -> None:
    _, selected = runs(tmp_path, 1)
    printer = Printer(selected, color=True, highlight=re.compile("3|m|^"))
    out = printer.format(LineBlock(of(1, 0), b"\x1b[31mloss 3\x1b[0m m\n"))
    reverse, back = b"\x1b[7m", b"\x1b[27m"
    assert out == (
        b"\x1b[31mloss "
        + reverse
        + b"3"
        + back
        + b"\x1b[0m "
        + reverse
        + b"m"
        + back
        + b"\x1b[0m\n"
    )


def test_a_folded_line_has_the_colour_of_its_lowest_rank(tmp_path: Path) -> None:
    _, selected = runs(tmp_path, 3)
    printer = Printer(selected, color=True)
    direct = printer.format(LineBlock(of(1, 1), b"x\n"))
    folded = printer.folded(of(1, 2), [(0b110, b"x")])
    assert folded[:5] == direct[:5]
