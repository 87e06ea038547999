"""The programs of docs/roles.md, which ship, run as they are; their ranks are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission.local import processes
from tests.support.place import REPOSITORY
from tests.support.waiting import until


class Started:
    """``hpcrun run`` of a spec, and what it wrote."""

    def __init__(self, directory: Path, spec: str, name: str) -> None:
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        self.experiment = ExperimentPaths(directory / "root" / name)
        self.run = self.experiment.run(0)
        environment = {
            **os.environ,
            **{"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self._temporary)},
            "OMP_NUM_THREADS": "1",
        }
        words = ("-m", "hpcrun", "--root", str(directory / "root"), "run", spec, "cluster=local")
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self, rank: int) -> None:
        (path,) = self._temporary.glob(f"hpcrun-*/attempt-*/rank-{rank}.pid")
        os.kill(int(path.read_text()), signal.SIGKILL)

    def events(self) -> list[dict[str, Any]]:
        return ledger.read(self.run)[0].roles if self.run.ledger.exists() else []

    def end(self) -> str:
        said, _ = self._process.communicate(timeout=100)
        assert self._process.returncode == 0, said
        return said

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        for submission in self.experiment.submissions():
            processes.kill_all(submission.directory)


Start = Callable[[str, str], Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Started] = []

    def begin(spec: str, name: str) -> Started:
        made.append(Started(tmp_path, spec, name))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def test_a_parameter_server_with_a_killed_worker_and_a_killed_server(start: Start) -> None:
    running = start("parameter-server", "parameter-server")

    def lines() -> list[dict[str, Any]]:
        path = running.run.attempt(1).metrics
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    until(lambda: len(lines()) > 3, timeout=60)
    running.kill(5)
    until(lambda: len(running.events()) == 1)
    running.kill(1)
    until(lambda: len(running.events()) == 2)
    said = running.end()
    assert "completed in 1 attempt" in said
    told = [(one["role"], one["what"], one["ranks"]) for one in running.events()]
    assert told == [("server", "restarted", [5]), ("worker", "restarted", [1])]
    found = lines()
    # Of 800: a line is written once ten updates have come since the last one.
    assert found[-1]["step"] > 790
    # Others may have trained for long before the first line.
    assert found[-1]["loss"] < min(0.01, found[0]["loss"])
    served = running.run.attempt(1).rank_log(5).read_text().splitlines()
    assert len(served) == 2
    # What it had saved, of up to 800 updates, and no more than 20 of them less.
    assert 0 < int(served[1].split(", ")[1].split()[0]) < 800


def test_an_evaluator_that_is_killed_judges_all_that_was_saved_once(
    start: Start, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    trainer = (REPOSITORY / "jobs" / "saving_trainer.py").read_text()
    # Slow enough for the evaluator to be killed between two saves.
    trainer = trainer.replace("optimizer.step()\n", "optimizer.step()\n    pause(0.03)\n")
    trainer = trainer.replace("import os\n", "import os\nfrom time import sleep as pause\n")
    (tmp_path / "trainer.py").write_text(trainer)
    spec = (REPOSITORY / "configs" / "experiments" / "evaluator.yaml").read_text()
    spec = spec.replace("../../jobs/saving_trainer.py", "trainer.py")
    spec = spec.replace("../../jobs/evaluator.py", "evaluator.py")
    (tmp_path / "evaluator.yaml").write_text(spec)
    (tmp_path / "evaluator.py").write_bytes((REPOSITORY / "jobs" / "evaluator.py").read_bytes())
    running = start("./evaluator.yaml", "evaluator")
    results = running.run.work / "evaluated.jsonl"
    until(lambda: results.exists() and results.read_text(), timeout=60)
    running.kill(1)
    until(lambda: len(running.events()) == 1)
    assert "completed in 1 attempt" in running.end()
    judged = [json.loads(line) for line in results.read_text().splitlines()]
    assert [one["step"] for one in judged] == list(range(20, 201, 20))
    assert judged[-1]["held_out"] < 0.01 < judged[0]["held_out"]
    (event,) = running.events()
    assert (event["role"], event["signal"]) == ("evaluator", "SIGKILL")
