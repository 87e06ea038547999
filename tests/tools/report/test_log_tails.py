"""The ends of logs in a report: the traceback of what failed, bounded and without colours."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun.observe.diagnosis.attempts import stories
from hpcrun.observe.read.selection import Finder
from hpcrun.tools.report import report
from hpcrun.tools.report.report import LogTail
from tests.support.experiment import Experiment

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 1, in <module>',
    "\x1b[31mZeroDivisionError\x1b[0m: division by zero",
]


def tail(study: Experiment, runs: int = 1) -> LogTail | None:
    [story] = stories(Finder(study.paths.root).resolve(["study/0"]))
    return report._log_tail(story, runs)


def small(directory: Path) -> Experiment:
    study = Experiment(directory)
    study.submit((0,))
    return study


def test_a_failed_run_shows_its_traceback(tmp_path: Path) -> None:
    study = small(tmp_path)
    study.start(0, 1)
    study.log(0, 1, 0, "something else\n")
    study.end(0, 1, "failed", kind="rank_crash", message="it crashed", rank=5, log_tail=TRACEBACK)
    found = tail(study)
    assert found is not None
    assert found.title == "The last lines of rank 5 of attempt 1"
    assert found.lines == (*TRACEBACK[:2], "ZeroDivisionError: division by zero")
    assert tail(study, 100_000) is not None  # also where there are very many


def test_another_run_shows_what_it_printed_last(tmp_path: Path) -> None:
    study = small(tmp_path)
    assert tail(study) is None
    study.start(0, 1)
    assert tail(study) is None
    bar = "\r".join(f"{n}%|##| {n}/100 [00:0{n % 10}<00:07, 11.5it/s]" for n in range(50))
    study.log(0, 1, 0, "".join(f"line {n}\n" for n in range(1_000)) + f"{bar}\n")
    found = tail(study)
    assert found is not None
    assert found.title == "The last lines of rank 0 of attempt 1"
    assert found.lines[:4] == tuple(f"line {n}" for n in range(996, 1_000))
    assert found.lines[4].endswith("(the last of 50 updates)")
    assert tail(study, 101) is None


def test_what_is_too_long_is_cut_and_said(tmp_path: Path) -> None:
    study = small(tmp_path)
    study.start(0, 1)
    lines = [f"{n:02} {'x' * 10_000}" for n in range(40)]
    study.end(0, 1, "failed", kind="rank_crash", message="it crashed", rank=0, log_tail=lines)
    found = tail(study, 20)
    assert found is not None
    assert found.lines[0] == "… (37 lines before these)"
    assert [line[:2] for line in found.lines[1:]] == ["37", "38", "39"]
    assert all(len(line) <= 301 for line in found.lines)


def test_a_log_that_is_no_file(tmp_path: Path) -> None:
    study = small(tmp_path)
    os.mkfifo(study.start(0, 1).rank_log(0))
    assert tail(study) is None
