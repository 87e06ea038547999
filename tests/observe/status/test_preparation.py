"""What a run's nodes do before its ranks start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import status
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.status import statuses
from hpcrun.slurm.queue import JobState
from hpcrun.state.layout import AttemptPaths
from tests.support.experiment import Experiment

COMPILING = "2026-01-31T12:00:00 hpcrun: compiling DeepSpeed's A: 1 of 3 files, 40 s so far\n"


def _log(directory: Path, name: str, text: str, when: float) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    os.utime(directory / name, (when, when))


def test_the_last_words_of_the_agent_that_wrote_last(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path / "1")
    assert status._preparation(paths) is None
    _log(paths.directory, "agent-n1.log", COMPILING, 100)
    _log(paths.directory, "agent-n2.log", COMPILING.replace("40", "80") + "a traceback\n", 200)
    _log(paths.directory, "agent-n3.log", "no words of ours\n", 300)
    assert status._preparation(paths) == "n2: compiling DeepSpeed's A: 1 of 3 files, 80 s so far"


@pytest.mark.timeout(20)
def test_hostile_logs(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path / "1")
    evil = "2026-01-31T12:00:00 hpcrun: \x1b[2J" + "x" * 5000 + "\n"
    _log(paths.directory, "agent-n1.log", evil, 100)
    os.mkfifo(paths.directory / "agent-n2.log")
    (paths.directory / "agent-n3.log").symlink_to("/dev/zero")
    assert status._preparation(paths) is None
    _log(paths.directory, "agent-n1.log", evil.replace("x" * 4000, ""), 100)
    said = status._preparation(paths)
    assert said is not None
    assert said.startswith("n1: \\x1b[2Jxxx")
    assert len(said) < 300


def test_status_says_what_a_run_waits_for(tmp_path: Path) -> None:
    study = Experiment(tmp_path / "root")
    study.submit((0,), job_id="100")
    study.start(0, job_id="100", workers=False)
    runs = Finder(tmp_path / "root").resolve(["study"])
    answers = Answers(jobs={"100": JobState("100", "RUNNING")})
    (before,) = statuses(runs, ask=lambda _: answers)
    assert before.reason == "preparing its nodes"
    _log(study.run(0).attempt(1).directory, "agent-node1.log", COMPILING, 100)
    (now,) = statuses(runs, ask=lambda _: answers)
    assert now.reason == (
        "preparing its nodes: node1: compiling DeepSpeed's A: 1 of 3 files, 40 s so far"
    )
