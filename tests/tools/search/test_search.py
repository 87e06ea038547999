"""``hpcrun search`` as it is typed."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from hpcrun import feature
from hpcrun.errors import UsageError
from hpcrun.observe.read.selection import Finder
from hpcrun.shared_dataclass import replace
from hpcrun.state import chosen_point
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH
from hpcrun.tools.search import optuna_study, search_trials
from tests.support import command
from tests.support.experiment import TRAIN, Experiment, path_with, slurm_shim

Hpcrun = Callable[..., subprocess.CompletedProcess[str]]
SPACE: dict[str, Any] = {
    "config.lr": {"loguniform": [0.001, 1.0]},
    "config.layers": {"int": [1, 8]},
    "config.kind": {"choice": ["a", "b"]},
}


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Twelve completed trials, of which lr alone matters; one each is pruned, fails, runs, waits.

    Trial 11 is the best, with loss 1 / 11.
    """
    slurm_shim(
        tmp_path / "shim", squeue="100_14|RUNNING|None|node1|N/A\n100_15|PENDING|None||N/A\n"
    )
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    found = Experiment(tmp_path / "root")
    spec = {SEARCH: {"space": SPACE}, "objective": {"metric": "loss", "mode": "min"}}
    found.submit(range(16), spec=spec)
    for number in range(15):
        values = {
            "lr": 0.001 * 2 ** (number % 10),
            "layers": 1 + number % 8,
            "kind": "ab"[number % 2],
        }
        swept = {f"config.{key}": value for key, value in values.items()}
        label = f"lr={values['lr']},layers={values['layers']},kind={values['kind']}"
        chosen_point.write(found.run(number), ChosenPoint(label, swept, {}, TRAIN))
        found.start(number, job_id=f"100_{number}")
        loss = 1.0 / max(1, number) if number < 12 else 5.0
        found.metrics(number, 1, [1, 2, 3], loss=lambda step, best=loss: best + 3 - step)
        if number < 14:
            outcome = "completed" if number < 12 else ("pruned", "failed")[number - 12]
            found.end(number, 1, outcome, **({} if number < 12 else {"kind": "x", "message": "m"}))
    return found


@pytest.fixture
def hpcrun(search: Experiment, tmp_path: Path) -> Hpcrun:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command.hpcrun("search", *arguments, root=tmp_path / "root", cwd=tmp_path)

    return call


def test_at_a_glance(hpcrun: Hpcrun) -> None:
    done = hpcrun("study")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["trials"] == "16 trials: 12 completed, 1 pruned, 1 running, 1 failed, 1 left"
    assert lines["best"].startswith("loss 0.0909091 at step 3, study/11: lr=0.002,layers=4,kind=b")
    assert lines["objective"] == "loss (min)"
    assert "hpcrun search study --best > best.yaml" in done.stderr
    data = json.loads(hpcrun("study", "--json").stdout)
    assert data["trials"]["left"] == 1
    assert data["best"]["run"] == "study/11"
    assert sum(data["importance"].values()) == pytest.approx(1)
    assert [one["run"] for one in data["runs"]] == [f"study/{number}" for number in range(16)]
    assert data["runs"][15]["values"] == {}
    few = hpcrun("study/0-5")
    assert "importance  is told of 10 completed trials and more" in few.stdout


def test_runs_of_an_earlier_space_are_apart(
    hpcrun: Hpcrun, search: Experiment, tmp_path: Path
) -> None:
    """A study has one space, and so has what is said of a search."""
    space = {"config.kind": {"choice": ["a", "c"]}}
    spec = {SEARCH: {"space": space}, "objective": {"metric": "loss", "mode": "min"}}
    search.submit([16], spec=spec)
    point = ChosenPoint("kind=c", {"config.kind": "c"}, {}, TRAIN)
    chosen_point.write(search.run(16), point)
    search.start(16)
    search.metrics(16, 1, [1], loss=math.nan)
    search.end(16)
    done = hpcrun("study")
    assert "trials      1 trial: 1 completed" in done.stdout
    assert "best        nothing has logged a finite loss" in done.stdout
    told = "runs 0-15 of another space or configuration, or of before --new, are left out, unless"
    assert told in done.stderr
    assert "16 trials" in hpcrun("study/0-15").stdout
    done = hpcrun("study", "--storage", f"sqlite:///{tmp_path}/study.db", "--json")
    assert json.loads(done.stdout)["trials"] == 1


def test_runs_of_an_earlier_configuration_are_apart(hpcrun: Hpcrun, search: Experiment) -> None:
    """A changed configuration makes another search of the same space; a requeue makes none."""
    spec = {SEARCH: {"space": SPACE}, "objective": {"metric": "loss", "mode": "min"}}
    for runs in ([16, 17], [16]):
        search.submit(runs, spec={**spec, "config": {"data": "more"}})
    done = hpcrun("study")
    assert "trials      2 trials: " in done.stdout
    assert "runs 0-15 of another space or configuration" in done.stderr


def test_whom_the_best_of_a_population_went_on_from(hpcrun: Hpcrun, search: Experiment) -> None:
    parents = {11: (7, 2), 7: (3, 1)}
    for number, (parent, step) in parents.items():
        run = search.run(number)
        point = chosen_point.read(run)
        assert point is not None
        origin = {"run": parent, "step": step, "checkpoint": f"step-0000000{step}-a1"}
        shutil.rmtree(run.point.parent)
        chosen_point.write(run, replace(point, parent=origin))
    told = "lineage     the best began from 7@2, that from 3@1"
    assert told in hpcrun("study").stdout.splitlines()
    runs = json.loads(hpcrun("study", "--json").stdout)["runs"]
    assert {number: one["parent"] for number, one in enumerate(runs) if "parent" in one} == {
        11: "7@2",
        7: "3@1",
    }


def test_a_storage_that_optuna_opens(hpcrun: Hpcrun, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    done = hpcrun("study", "--storage", url, "--json")
    assert json.loads(done.stdout) == {"storage": url, "study": "study", "trials": 15}
    assert f"optuna-dashboard {url}" in done.stderr
    study = optuna.load_study(study_name="study", storage=url)
    trials = study.trials
    assert study.metric_names == ["loss"]
    assert study.best_value == pytest.approx(1 / 11)
    assert [trial.state.name for trial in trials] == [
        *["COMPLETE"] * 12,
        *("PRUNED", "FAIL", "RUNNING"),
    ]
    assert trials[3].params == {"config.lr": 0.008, "config.layers": 4, "config.kind": "b"}
    assert trials[3].intermediate_values == pytest.approx({1: 1 / 3 + 2, 2: 1 / 3 + 1, 3: 1 / 3})
    assert trials[3].distributions["config.lr"] == optuna.distributions.FloatDistribution(
        0.001, 1.0, log=True
    )
    assert trials[3].user_attrs == {"run": "study/3", "state": "completed"}
    again = hpcrun("study", "--storage", url)
    assert again.returncode == 2
    assert "has a study study already, and nothing is added to it" in again.stderr
    assert "--study-name" in again.stderr
    assert len(optuna.load_study(study_name="study", storage=url).trials) == 15
    assert hpcrun("study", "--storage", url, "--study-name", "other").returncode == 0


@pytest.fixture
def several(search: Experiment) -> Experiment:
    """Four completed trials of two objectives, of which 0 and 2 are on the front; 3 lacks one.

    A key that only some of them have is in the space.
    """
    found = Experiment(search.paths.root, "several")
    space = {**SPACE, "config.depth": {"int": [1, 3], "when": {"config.kind": ["a"]}}}
    more = [{"metric": "seconds", "mode": "max"}]
    spec = {
        SEARCH: {"space": space, "more_objectives": more},
        "objective": {"metric": "loss", "mode": "min"},
    }
    found.submit(range(4), spec=spec)
    for number, (loss, seconds) in enumerate(((1.0, 5.0), (2.0, 4.0), (3.0, 9.0), (0.5, None))):
        swept: dict[str, Any] = {"config.lr": 0.1, "config.layers": 1 + number, "config.kind": "b"}
        swept |= {"config.kind": "a", "config.depth": 2} if number == 0 else {}
        chosen_point.write(found.run(number), ChosenPoint("", swept, {}, TRAIN))
        found.start(number)
        values = {"loss": loss} | ({} if seconds is None else {"seconds": seconds})
        found.metrics(number, 1, [1, 2], **values)
        found.end(number)
    return found


def test_several_objectives(hpcrun: Hpcrun, several: Experiment, tmp_path: Path) -> None:
    done = hpcrun("several")
    assert "objective   loss (min), seconds (max)" in done.stdout
    assert [line.split()[1:5] for line in done.stdout.splitlines() if line[:5] == "front"] == [
        ["loss", "1,", "seconds", "5,"],
        ["loss", "3,", "seconds", "9,"],
    ]
    data = json.loads(hpcrun("several", "--json").stdout)
    assert [one["run"] for one in data["front"]] == ["several/0", "several/2"]
    assert data["front"][0]["objectives"] == [1.0, 5.0]
    best = hpcrun("several", "--best")
    assert best.returncode == 2
    assert "no run is better in all than several/0, several/2" in best.stderr
    url = f"sqlite:///{tmp_path}/study.db"
    hpcrun("several", "--storage", url)
    study = optuna.load_study(study_name="several", storage=url)
    assert [one.name for one in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert [one.values for one in study.trials] == [[1.0, 5.0], [2.0, 4.0], [3.0, 9.0], None]
    assert [one.number for one in study.best_trials] == [0, 2]
    assert "config.depth" in study.trials[0].params
    assert "config.depth" not in study.trials[1].params


def test_of_very_many_values_a_storage_gets_some(
    hpcrun: Hpcrun, search: Experiment, tmp_path: Path
) -> None:
    search.metrics(3, 1, range(4, 1001), loss=7.0)
    url = f"sqlite:///{tmp_path}/study.db"
    assert "of 1 run, 100 values are kept" in hpcrun("study", "--storage", url).stderr
    kept = optuna.load_study(study_name="study", storage=url).trials[3].intermediate_values
    assert len(kept) == 100
    assert max(kept) == 1000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--storage", "nonsense"], "--storage nonsense: ArgumentError"),
        (["--storage", "postgresql://me:secret@nowhere/db"], "postgresql://…@nowhere/db"),
        (["--storage", "sqlite:////no/such/place/study.db"], "OperationalError"),
        (["--storage", "sqlite:///x.db", "--best"], "do not go together"),
        (["--study-name", "x"], "--study-name is of --storage"),
    ],
)
def test_what_is_wrong_with_a_storage(hpcrun: Hpcrun, arguments: list[str], told: str) -> None:
    done = hpcrun("study", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "hint:" in done.stderr
    assert "secret" not in done.stderr


def test_a_study_that_cannot_be_written_whole_is_removed(
    search: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a trial whose value is not in the space is left out, and told."""
    point = ChosenPoint("", {"config.lr": 0.5, "config.layers": 9, "config.kind": "a"}, {}, TRAIN)
    chosen_point.write(search.run(15), point)
    said: list[str] = []
    view = search_trials.read(Finder(tmp_path / "root").resolve(["study"]), said.append)
    add, added = optuna.Study.add_trial, []

    def fail(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if added:
            raise RuntimeError("no room")
        added.append(trial)
        add(study, trial)

    monkeypatch.setattr(optuna.Study, "add_trial", fail)
    url = f"sqlite:///{tmp_path}/study.db"
    with pytest.raises(UsageError, match="RuntimeError: no room"):
        optuna_study.store(view, url, "study", said.append)
    assert added
    assert optuna.get_all_study_names(url) == []
    assert any(one.startswith("study/15 does not count: ") for one in said)


def test_without_optuna(search: Experiment, tmp_path: Path) -> None:
    """All is told but what Optuna makes of it."""
    hidden = tmp_path / "hidden" / "optuna"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no Optuna')")
    paths = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    root, env = tmp_path / "root", {"PYTHONPATH": paths}
    done = command.hpcrun("search", "study", root=root, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "best        loss 0.0909091" in done.stdout
    assert (
        "importance is not known: Optuna cannot be imported: no Optuna; pip install" in done.stderr
    )


def test_what_is_no_search(hpcrun: Hpcrun, tmp_path: Path) -> None:
    other = Experiment(tmp_path / "root", "grid")
    other.submit((0, 1), job_id=None)
    done = hpcrun("grid")
    assert done.returncode == 2
    assert "grid is no search" in done.stderr
    assert "are several experiments" in hpcrun("grid", "study").stderr


PROGRAM = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--name")
parser.add_argument("--epochs", type=int)
given = parser.parse_args()
for step in range(given.epochs):
    print(f"step {step + 1} loss {abs(given.lr - 0.3) + 1 / (1 + step)}")
"""
SPEC = """\
cluster: local
entry: train.py
objective: {metric: loss}
progress: {pattern: 'step (?P<step>\\d+) loss (?P<loss>\\S+)'}
config: {lr: 0.1, epochs: 2, name: 'run-${config.lr}'}
sweep: {search: {space: {lr: {uniform: [0, 1]}}, trials: 3, parallel: 3}}
"""


@pytest.mark.skipif("point_search" not in feature.names(), reason="nothing chooses values")
def test_the_best_is_ready_to_submit(tmp_path: Path) -> None:
    """It comes to what the run had, whatever was typed, and changed in its spec since."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "e.yaml").write_text(SPEC)

    def hpcrun(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command.hpcrun(*arguments, cwd=tmp_path, root=tmp_path / "runs")

    assert hpcrun("submit", "e.yaml", "config.epochs=3", "--wait").returncode == 0
    rows = json.loads(hpcrun("results", "e", "--json").stdout)
    best = min(rows, key=lambda row: float(row["loss.best"]))
    (tmp_path / "e.yaml").write_text(SPEC.replace("{metric: loss}", "{metric: loss, mode: min}"))
    done = hpcrun("search", "e", "--best")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# The best of search e: loss {best['loss']:.6g} at step 3, ")
    assert yaml.safe_load(done.stdout)["sweep"] is None
    (tmp_path / "best.yaml").write_text(done.stdout)
    submitted = hpcrun("submit", "best.yaml", "--wait")
    assert submitted.returncode == 0, submitted.stderr
    (row,) = json.loads(hpcrun("results", "e-best", "--json").stdout)
    assert math.isclose(row["loss"], best["loss"])
    assert row["run"] == "e-best/0"
    specs = [
        json.loads(hpcrun("show", name, "--config", "--json").stdout)
        for name in (f"{best['run']}", "e-best/0")
    ]
    assert specs[0]["config"] == specs[1]["config"]
    assert specs[1]["config"]["name"] == f"run-{best['config.lr']}"
    assert SEARCH not in specs[1]
    _check_what_cannot_be_written(hpcrun, tmp_path)


def _check_what_cannot_be_written(
    hpcrun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A spec that is gone, or has a key that the run had not."""
    (tmp_path / "e.yaml").write_text(SPEC.replace("lr: 0.1, ", "lr: 0.1, more: 1, "))
    done = hpcrun("search", "e", "--best")
    assert done.returncode == 1
    assert "does not come to what e/" in done.stderr
    assert "config.more" in done.stderr
    assert "--config` prints all that it had" in done.stderr
    (tmp_path / "e.yaml").unlink()
    assert "does not compile any more" in hpcrun("search", "e", "--best").stderr
