"""Searches under the local executor, by the command line alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import chosen_point, ledger
from hpcrun.state.layout import ExperimentPaths
from tests.support import command
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(240)

PROGRAM = """\
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--kind")
parser.add_argument("--name")
given = parser.parse_args()
assert given.name == f"run-{given.lr}", given
number = int(os.environ["HPCRUN_RUN"].rpartition("/")[2])
if number == 2 and os.environ["HPCRUN_ATTEMPT"] == "1":
    sys.exit(3)
print(f"step 1 loss {(given.lr - 0.3) ** 2 + (given.kind == 'b')}")
"""
SPEC = """\
cluster: local
entry: train.py
objective: {metric: loss}
progress: {pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)'}
config: {lr: 0.1, kind: a, name: 'run-${config.lr}'}
recovery: {max_failures: 1}
sweep: {search: {space: {lr: {uniform: [0, 1]}, kind: [a, b]}, trials: 4, parallel: 2}}
"""

Hpcrun = Callable[..., Any]


@pytest.fixture
def hpcrun(tmp_path: Path) -> Hpcrun:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "e.yaml").write_text(SPEC)

    def call(*arguments: str, **options: Any) -> Any:
        return command.hpcrun(*arguments, cwd=tmp_path, root=tmp_path / "runs", **options)

    return call


def _rows(hpcrun: Hpcrun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hpcrun("results", "e", "--json").stdout)
    return found


def test_a_search_goes_on_with_more_trials(hpcrun: Hpcrun, tmp_path: Path) -> None:
    planned = hpcrun("plan", "e.yaml")
    assert planned.returncode == 0, planned.stderr
    assert "train.py '--lr=<lr>' '--kind=<kind>' '--name=run-<lr>'" in planned.stdout
    assert "4 runs get values of lr, kind, each as it starts" in planned.stderr
    assert hpcrun("submit", "e.yaml", "--wait").returncode == 1
    rows = _rows(hpcrun)
    assert [row["state"] for row in rows] == ["completed", "completed", "failed", "completed"]
    experiment = ExperimentPaths(tmp_path / "runs" / "e")
    points = [chosen_point.read(experiment.run(number)) for number in range(4)]
    assert [row["config.lr"] for row in rows] == [one.swept["config.lr"] for one in points if one]
    assert len({row["config.lr"] for row in rows}) == 4
    # One that failed keeps its values, and further trials come behind.
    done = hpcrun("submit", "e.yaml", "sweep.search.trials=6", "--wait")
    assert done.returncode == 0, done.stderr
    assert "6 runs (2 new, 1 starts again, 3 completed already)" in done.stderr
    more = _rows(hpcrun)
    assert [row["config.lr"] for row in more][:4] == [row["config.lr"] for row in rows]
    assert {row["state"] for row in more} == {"completed"}
    loss = {row["run"]: (row["config.lr"] - 0.3) ** 2 + (row["config.kind"] == "b") for row in more}
    assert {row["run"]: row["loss"] for row in more} == pytest.approx(loss)
    assert len(ledger.read(experiment.run(2))) == 2
    best = min(more, key=lambda row: row["loss"])
    said = hpcrun("status", "e").stderr
    assert (
        "search of 6 trials: 6 completed; "
        f"best last value: loss {best['loss']:.6g}, run {best['run'][2:]}, lr={best['config.lr']}"
        in said
    )


def test_a_python_without_optuna(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """It is told before a submission; where it is taken away later, the run ends so."""
    hidden = tmp_path / "hidden" / "optuna"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('a broken Optuna')")
    paths = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    text = (tmp_path / "e.yaml").read_text()
    environment = f"environment: {{variables: {{PYTHONPATH: '{paths}'}}}}\n"
    (tmp_path / "e.yaml").write_text(text.replace("trials: 4", "trials: 1") + environment)
    hpcrun("submit", "e.yaml", "--wait")
    (attempt,) = ledger.read(ExperimentPaths(tmp_path / "runs" / "e").run(0))
    said = (attempt.cause or {})["message"]
    assert "the search did not give this run its values" in said
    assert "Optuna cannot be imported: a broken Optuna" in said


def test_it_is_killed_at_any_time(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """Nothing or all of it is written; who asks again gets the same, and so does everybody."""
    assert hpcrun("submit", "e.yaml", "--wait").returncode == 1
    submission = ExperimentPaths(tmp_path / "runs" / "e").submission(1)
    paths = submission.experiment.run(3)
    argv = [sys.executable, "-m", "hpcrun.features.point_search.choose"]
    argv += [str(submission.directory), "3"]
    shutil.rmtree(paths.point.parent)
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    expected, whole = chosen_point.read(paths), 0
    for number in range(12):
        shutil.rmtree(paths.point.parent, ignore_errors=True)
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        try:
            process.wait(took * number / 7)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        found = chosen_point.read(paths)
        assert found in (None, expected)
        assert (found is None) == (not paths.point.exists())
        whole += found is not None
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    assert chosen_point.read(paths) == expected
    assert 0 < whole < 12


def test_runs_that_ask_at_once_get_points_of_their_own(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """Six of six points; those who ask in the same second cannot see what the others choose."""
    space = "space: {kind: [a, b, c, d, e, f]}, trials: 6, parallel: 6"
    text = SPEC.replace(
        "space: {lr: {uniform: [0, 1]}, kind: [a, b]}, trials: 4, parallel: 2", space
    )
    (tmp_path / "e.yaml").write_text(text)
    (tmp_path / "train.py").write_text("print('step 1 loss 1')\n")
    assert hpcrun("submit", "e.yaml", "--wait").returncode == 0
    assert sorted(row["config.kind"] for row in _rows(hpcrun)) == [*"abcdef"]


def test_a_budget_that_is_spent(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """The others are cancelled with the reason, are no trials, and go on by a greater budget."""
    text = (tmp_path / "e.yaml").read_text().replace("parallel: 2", "parallel: 1, budget: 1.0e-6")
    (tmp_path / "e.yaml").write_text(text)
    assert hpcrun("submit", "e.yaml", "--wait").returncode == 1
    rows = _rows(hpcrun)
    assert [row["state"] for row in rows] == ["completed", *["cancelled"] * 3]
    assert [row["config.lr"] is None for row in rows] == [False, True, True, True]
    said = hpcrun("status", "e")
    assert "the search's budget of 1e-06 CPU-hours is spent" in said.stdout + said.stderr
    assert "budget of 1e-06 CPU-hours is spent" in hpcrun("why", "e").stdout
    done = hpcrun("submit", "e.yaml", "sweep.search.budget=null", "--wait")
    assert "3 start again, 1 completed already" in done.stderr
    rows = _rows(hpcrun)
    assert {row["state"] for row in rows} == {"completed"}
    assert len({row["config.lr"] for row in rows}) == 4


def test_a_search_that_learns_from_another(hpcrun: Hpcrun, tmp_path: Path) -> None:
    hpcrun("submit", "e.yaml", "--wait")
    more = "trials: 1, learn_from: [e]"
    (tmp_path / "f.yaml").write_text(SPEC.replace("trials: 4, parallel: 2", more))
    done = hpcrun("submit", "f.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    told = "3 of 4 runs of e are told to the sampler; not told: 1 not completed"
    assert told in done.stderr
    assert told in hpcrun("submit", "f.yaml", "--dry-run").stderr
    (found,) = json.loads(hpcrun("results", "f", "--json").stdout)
    assert found["config.lr"] not in [row["config.lr"] for row in _rows(hpcrun)]


STEPS = """\
import argparse, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
given = parser.parse_args()
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print("saved")))
# All begin together: one is judged beside those that have come as far.
open(os.path.join(TOGETHER, os.environ["HPCRUN_RUN"].rpartition("/")[2]), "w").close()
while len(os.listdir(TOGETHER)) < 7:
    time.sleep(0.05)
done = int(open("done").read()) if os.path.exists("done") else 0
for step in range(done + 1, 31):
    print(f"step {step} loss {given.x}", flush=True)
    time.sleep(0.6)
    with open("done", "w") as stream:
        stream.write(str(step))
"""


def test_runs_that_fall_behind_are_ended(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """A program that knows nothing of it gets its stop signal; all of it is well."""
    together = tmp_path / "together"
    together.mkdir()
    (tmp_path / "train.py").write_text(f"TOGETHER = {str(together)!r}\n{STEPS}")
    text = SPEC.replace("kind: a, name: 'run-${config.lr}'", "x: 0").replace("lr: 0.1, ", "")
    text = text.replace("{lr: {uniform: [0, 1]}, kind: [a, b]}", "{x: {uniform: [0, 1]}}")
    text = text.replace("trials: 4, parallel: 2", "trials: 7, parallel: 7, prune: median")
    text = text.replace("{max_failures: 1}", "{stop_signal: SIGUSR2}")
    (tmp_path / "e.yaml").write_text(text.replace("progress: {", "progress: {total: 30, "))
    done = hpcrun("submit", "e.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    rows = sorted(_rows(hpcrun), key=lambda row: row["loss"])
    assert [row["step"] for row in rows[:3]] == [30] * 3
    pruned = [row["run"] for row in rows if row["state"] == "pruned"]
    assert [row["state"] for row in rows] == ["completed"] * (7 - len(pruned)) + ["pruned"] * len(
        pruned
    )
    assert f"all 7 runs are over, {len(pruned)} of them pruned" in done.stderr
    worst = rows[-1]["run"]
    assert "Attempt 1 was pruned" in hpcrun("why", worst).stdout
    assert "saved" in hpcrun("logs", worst).stdout
    _check_state(hpcrun, worst, pruned)
    _check_promotion(hpcrun, worst, pruned)


def _check_state(hpcrun: Hpcrun, worst: str, pruned: list[str]) -> None:
    """Commands tell that it was pruned and why, and leave it alone."""
    (status,) = json.loads(hpcrun("status", worst, "--json").stdout)
    assert (status["state"], status["cause"]) == ("pruned", None)
    assert status["reason"].startswith("loss 0.")
    assert "and the median of" in status["reason"]
    chosen = json.loads(hpcrun("status", "e", "state=pruned", "--json").stdout)
    assert {f"e/{one['run']}" for one in chosen} == set(pruned)
    assert f"{len(pruned)} pruned" in hpcrun("status", "e").stderr
    (listed,) = json.loads(hpcrun("list", "--json").stdout)
    assert listed["states"] == {"completed": 7 - len(pruned), "pruned": len(pruned)}
    again = hpcrun("submit", "e.yaml")
    assert f"({7 - len(pruned)} completed already, {len(pruned)} pruned already)" in again.stderr
    assert "nothing to submit" in again.stderr
    hpcrun("cancel", worst, "--yes")
    assert json.loads(hpcrun("status", worst, "--json").stdout)[0]["state"] == "pruned"


def _check_promotion(hpcrun: Hpcrun, worst: str, pruned: list[str]) -> None:
    """It goes on where a person names it, to its end."""
    steps = json.loads(hpcrun("requeue", "e", "--dry-run", "--json").stdout)
    assert {step["action"] for step in steps} == {"left"}
    told = {f"e/{step['run']}" for step in steps if "was pruned" in step["reason"]}
    assert told == set(pruned)
    done = hpcrun("requeue", worst, "--yes")
    assert "not pruned again" in done.stderr, done.stderr
    until(lambda: _state(hpcrun, worst) == "completed", "its end", 60)
    why = hpcrun("why", worst).stdout
    assert "after it was submitted again" in why
    assert "Attempt 2 completed the run" in why
    (row,) = [one for one in _rows(hpcrun) if one["run"] == worst]
    assert (row["state"], row["step"]) == ("completed", 30)
    assert "step 1 loss" not in hpcrun("logs", worst, "--attempt", "2").stdout


def _state(hpcrun: Hpcrun, run: str) -> str:
    return str(json.loads(hpcrun("status", run, "--json").stdout)[0]["state"])


def test_a_submit_beside_runs_of_it(hpcrun: Hpcrun, tmp_path: Path) -> None:
    """What they have is no change of the spec, and can be asked for."""
    (tmp_path / "train.py").write_text(PROGRAM + "import time\ntime.sleep(60)\n")
    hpcrun("submit", "e.yaml")
    experiment = ExperimentPaths(tmp_path / "runs" / "e")
    until(lambda: chosen_point.read(experiment.run(1)), "values", 30)
    done = hpcrun("submit", "e.yaml", "sweep.search.trials=5", "--dry-run")
    assert "does not reach" not in done.stderr
    assert "5 runs (1 new" in done.stderr
    lr = _rows(hpcrun)[1]["config.lr"]
    asked = hpcrun("submit", "e.yaml", "--only", f"lr={lr}", "--dry-run")
    assert asked.returncode == 0, asked.stderr
    hpcrun("cancel", "e", "--yes")


def test_the_jobs_python_needs_nothing_but_optuna() -> None:
    """Which brings yaml; the packages that hpcrun is installed with need not be there."""
    absent = ["omegaconf", "antlr4", "jinja2", "rich", "click", "pathspec", "submitit"]
    names = ["features.point_search.choose", "compile.sweep.late_run", "observe.read.metric_curves"]
    lines = [f"sys.modules[{name!r}] = None" for name in absent]
    program = "\n".join(["import sys", *lines, *(f"import hpcrun.{name}" for name in names)])
    subprocess.run([sys.executable, "-c", program], check=True)
