"""Populations: whom a later trial begins from, with which values; and one that trains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.target.command_line import EQUALS
from hpcrun.errors import HpcrunError
from hpcrun.feature import NotWanted
from hpcrun.features.point_search import inherited, population
from hpcrun.policy import recovery
from hpcrun.state import chosen_point, ledger, manifest, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import SEARCH, RunPlan
from tests.support import command, operators
from tests.support.experiment import TRAIN, Experiment
from tests.support.made_checkpoint import make_checkpoint

SPACE: dict[str, Any] = {
    "config.lr": {"loguniform": [0.001, 1.0]},
    "config.width": {"int": [1, 8]},
    "config.kind": {"choice": ["a", None, True]},
    "config.rate": {"uniform": [0.0, 0.9], "when": {"config.kind": ["a"]}},
}
VALUES = {"config.lr": 0.1, "config.width": 4, "config.kind": "a", "config.rate": 0.5}
NONE = {"config.lr": 0.1, "config.width": 4, "config.kind": None}


def _same(number: float) -> population.Drawn:
    return lambda _: number


@pytest.mark.parametrize(
    ("form", "value", "down", "up"),
    [
        ({"loguniform": [0.001, 1.0]}, 0.1, 0.08, 0.125),
        ({"loguniform": [0.001, 1.0]}, 1.0, 0.8, 0.8),  # at the bound
        ({"uniform": [0, 1]}, 0.9, 0.72, 1),
        ({"uniform": [0, 1]}, 1 / 3, 0.266667, 0.416667),
        ({"uniform": [-1.0, 1.0]}, -0.5, -0.4, -0.625),
        ({"int": [1, 100]}, 40, 32, 50),
        ({"int": [1, 8]}, 1, 2, 2),
        ({"int": [1, 8]}, 2, 1, 3),
        ({"int_loguniform": [1, 512]}, 500, 400, 512),
        ({"choice": ["a", None, True]}, None, "a", True),
        ({"choice": ["a", None, True]}, "a", None, None),
        ({"choice": [1, True, "1"]}, True, 1, "1"),
    ],
)
def test_a_neighbour_of_a_value(form: dict[str, Any], value: Any, down: Any, up: Any) -> None:
    space = {"config.x": form}
    for drawn, expected in ((0.9, down), (0.1, up)):
        found = population.perturb(space, {"config.x": value}, _same(drawn), 0.0)
        assert json.dumps(found) == json.dumps({"config.x": expected})


@pytest.mark.parametrize(
    ("values", "drawn", "resample", "expected"),
    [
        (VALUES, 0.3, 0.5, {"lr": 0.00794328, "width": 3, "kind": "a", "rate": 0.27}),
        (VALUES, 0.3, 0.0, {"lr": 0.125, "width": 5, "kind": None}),  # which has no rate
        # It is drawn for a parent that had none.
        (NONE, 0.6, 0.5, {"lr": 0.08, "width": 3, "kind": "a", "rate": 0.54}),
    ],
)
def test_values_are_changed_or_drawn_anew(
    values: dict[str, Any], drawn: float, resample: float, expected: dict[str, Any]
) -> None:
    found = population.perturb(SPACE, values, _same(drawn), resample)
    assert found == {f"config.{key}": value for key, value in expected.items()}


def test_a_value_that_no_factor_moves_is_drawn_anew() -> None:
    found = population.perturb(
        {"config.x": {"uniform": [0.0, 1.0]}}, {"config.x": 0.0}, _same(0.3), 0
    )
    assert found == {"config.x": 0.3}


class Population:
    """A search of twelve trials, whose population is of four by default."""

    def __init__(self, root: Path, mode: str = "min", size: int = 4) -> None:
        self.experiment = Experiment(root, "e")
        self._mode, self._size = mode, size

    def submit(self) -> None:
        population = {"every": 10, "share": 0.5, "resample": 0.25, "size": self._size}
        frozen = {
            "space": {"config.lr": {"loguniform": [0.001, 1.0]}},
            **{"sampler": "random", "seed": 0, "first": [], "follows": [], "prune": "none"},
            **{"root": "/home/someone", "referred": [], "framework": "none", "recipe": None},
            **{"population": population, "located": {"kind": "command"}},
        }
        spec = {
            **{SEARCH: frozen, "progress": {"total": 100}, "args": [], "flags": EQUALS},
            **{"entry": ["train"], "config": {"lr": 0.1}, "recovery": {}},
            "objective": {"metric": "loss", "mode": self._mode},
        }
        self.experiment.submit(range(12), spec=spec)

    @property
    def paths(self) -> ExperimentPaths:
        return self.experiment.paths

    def run(self, number: int) -> RunPlan:
        return plan_file.read(self.paths.submission(1).plan).run(number)

    def begin(self, number: int, lr: float = 0.1) -> None:
        point = ChosenPoint("", {"config.lr": lr}, {}, TRAIN)
        chosen_point.write(self.experiment.run(number), point)
        self.experiment.start(number)

    def save(self, number: int, step: int, loss: float | None, attempt: int = 1) -> Path:
        metrics = {} if loss is None else {"loss": loss}
        found = make_checkpoint(self.experiment.run(number).checkpoints, step, attempt)
        entry = manifest.read(found)
        assert entry is not None
        manifest.Manifest(**{**vars(entry), "metrics": metrics}).write(found)
        return found

    def ask(self, number: int) -> str | None:
        return population.begin(self.run(number), self.paths)

    def point(self, number: int) -> ChosenPoint:
        found = chosen_point.read(self.experiment.run(number))
        assert found is not None
        return found


@pytest.fixture
def trained(tmp_path: Path) -> Population:
    """Four runs at step 20, of which the first two are the best."""
    found = Population(tmp_path)
    found.submit()
    for number in range(4):
        found.begin(number, 0.1 * (number + 1))
        found.save(number, 20, float(number))
    return found


def test_a_later_trial_has_the_checkpoint_of_one_of_the_best(trained: Population) -> None:
    parents = set()
    for number in range(4, 12):
        name = trained.ask(number)
        point, run = trained.point(number), trained.experiment.run(number)
        assert point.parent is not None
        parent = point.parent["run"]
        parents.add(parent)
        assert (name, point.parent["step"]) == (f"{parent}@20", 20)
        assert point.label.endswith(f",parent={name}")
        assert point.swept != trained.point(parent).swept
        assert chosen_point.parent_of(point.apply_to(trained.run(number))) == name
        inherited.settle(run)
        inherited.settle(run)
        ((directory, entry),) = manifest.complete(run.checkpoints)
        assert manifest.is_inherited(directory.name)
        assert (entry.step, entry.attempt) == (20, manifest.INHERITED)
        assert [path.name for path in run.point.parent.iterdir()] == ["point.json"]
    assert parents == {0, 1}
    lrs = [trained.point(number).swept["config.lr"] for number in range(4, 12)]
    assert len({*lrs}) == 8


def test_the_same_record_gives_the_same(trained: Population, tmp_path: Path) -> None:
    before = trained.ask(5), trained.point(5)
    shutil.rmtree(trained.experiment.run(5).directory)
    assert (trained.ask(5), trained.point(5)) == before
    # As does a copy of it, and the one that is asked again keeps what it has.
    shutil.rmtree(trained.experiment.run(5).directory)
    trained.experiment.paths.directory.rename(tmp_path / "other")
    trained.experiment.paths = ExperimentPaths(tmp_path / "other")
    assert (trained.ask(5), trained.point(5)) == before
    trained.save(1, 40, -9.0)
    trained.ask(5)
    assert trained.point(5) == before[1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("nothing", {0, 1}),
        ("max", {2, 3}),
        ("a pruned one", {1, 2}),
        ("a failed one", {1, 2}),
        ("a completed one", {0, 1}),
        ("no value", {1, 2}),
        ("torn", {1, 2}),
        ("a newer one", {0, 3}),
        ("one that only began with it", {1, 2}),
        ("too late, and an older one", {0, 1}),
        ("too late", {1, 2}),
    ],
)
def test_who_may_be_a_parent(tmp_path: Path, change: str, expected: set[int]) -> None:
    found = Population(tmp_path, "max" if change == "max" else "min")
    found.submit()
    for number in range(4):
        found.begin(number)
        found.save(number, 20, float(number))
    run = found.experiment.run(0)
    if change == "a pruned one":
        found.experiment.end(0, outcome="pruned")
    if change == "a failed one":
        found.experiment.end(0, outcome="failed")
        ledger.write(run, ledger.DECIDED, 1, action=recovery.STOP, reason="its failures are spent")
    if change == "a completed one":
        found.experiment.end(0)
    if change == "torn":
        (run.checkpoints / "step-00000020-a1" / manifest.NAME).unlink()
    if change == "no value":
        shutil.rmtree(run.checkpoints)
        found.save(0, 20, None)
    if change == "a newer one":
        found.save(3, 30, -1.0)
        found.save(1, 30, 9.0)
    if change == "one that only began with it":
        shutil.rmtree(run.checkpoints)
        found.save(0, 20, 0.0, manifest.INHERITED)
    if change.startswith("too late"):
        found.save(0, 95, 0.0)
    if change == "too late":
        shutil.rmtree(run.checkpoints / "step-00000020-a1")
    others = [one for one in plan_file.read(found.paths.submission(1).plan).runs if one.number < 4]
    best = population.best(others, found.paths, found.run(4))
    assert {one.run.number for one in best} == expected


@pytest.mark.parametrize("saved", [(), (95,), (None,)], ids=str)
def test_nobody_to_begin_from(tmp_path: Path, saved: tuple[int | None, ...]) -> None:
    """Before any save a trial begins anew, and says so; past all of them it is not wanted."""
    found = Population(tmp_path)
    found.submit()
    for number in range(4):
        assert found.ask(number) is None
        found.begin(number)
        for step in saved:
            found.save(number, step or 20, None if step is None else 1.0)
    if saved == (95,):
        with pytest.raises(NotWanted, match=r"no checkpoint leaves 10 steps .* is of step 95"):
            found.ask(4)
        assert chosen_point.read(found.experiment.run(4)) is None
        return
    assert found.ask(4) == population.ANEW
    assert chosen_point.read(found.experiment.run(4)) is None
    population.give(found.run(4), found.paths)
    point = found.point(4)
    assert (point.parent, point.label.partition(",")[2]) == (None, "parent=none")


def test_a_checkpoint_that_goes_meanwhile(
    trained: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is taken; nothing of the first is left, and nothing begins at step 0."""
    real, gone = inherited.link, []

    def link(source: Path, *rest: Any) -> None:
        gone.append(source)
        if len(gone) == 1:
            (source / "sub/rank-00000.pt").unlink()
        real(source, *rest)

    monkeypatch.setattr(inherited, "link", link)
    assert trained.ask(4) is not None
    assert len(gone) == 2
    run = trained.experiment.run(4)
    assert sorted(path.name for path in run.directory.iterdir()) == ["point"]

    def none(source: Path, *_: Any) -> None:
        raise inherited.NotThere(f"{source} is gone")

    monkeypatch.setattr(inherited, "link", none)
    with pytest.raises(HpcrunError, match=r"no checkpoint to go on from: .* is gone"):
        trained.ask(5)
    assert chosen_point.read(trained.experiment.run(5)) is None


PROGRAM = """\
import time
import torch
from torch import nn

def train(session):
    config = session.config
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    targets = inputs @ torch.arange(8.0).reshape(8, 1)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)
    for step in session.steps(total=40):
        rate = engine.optimizer.param_groups[0]["lr"]
        loss = nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        time.sleep(0.5)
        session.log({"loss": loss.item(), "rate": rate}, step=step)
"""
SPEC = """\
cluster: local
entry: train.py:train
objective: {metric: loss, mode: min}
config: {lr: 0.1, kind: a}
deepspeed:
  train_batch_size: 64
  optimizer: {type: Adam, params: {lr: '${config.lr}', torch_adam: true}}
  zero_optimization: {stage: 1}
checkpoint: {every: 4, keep: 9}
resources: {ntasks_per_node: 1, cpus_per_task: 1, time: "00:10:00"}
sweep:
  search:
    space: {config.lr: {loguniform: [1.0e-3, 1.0]}, kind: [a, b, c]}
    trials: 5
    parallel: 3
    sampler: random
    population: {every: 8, share: 0.34, resample: 0}
"""


@pytest.mark.training
@pytest.mark.timeout(300)
def test_a_population_trains(warm_operators: Path, tmp_path: Path) -> None:
    """The worst is pruned; who begins later goes on where its parent was, at a rate of its own."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "e.yaml").write_text(SPEC)
    operators.link(warm_operators, tmp_path / "runs")

    def hpcrun(*arguments: str) -> Any:
        return command.hpcrun(*arguments, cwd=tmp_path, root=tmp_path / "runs", timeout=240)

    done = hpcrun("submit", "e.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    rows = json.loads(hpcrun("results", "e", "--json").stdout)
    assert "pruned" in {row["state"] for row in rows[:3]}
    assert [row["search.parent"] for row in rows[:3]] == [None] * 3
    experiment = ExperimentPaths(tmp_path / "runs" / "e")
    courses = [_lines(experiment, number) for number in range(5)]
    for number in (3, 4):
        point = chosen_point.read(experiment.run(number))
        assert point is not None
        assert point.parent is not None
        parent, step = point.parent["run"], point.parent["step"]
        assert rows[number]["search.parent"] == f"{parent}@{step}"
        first, theirs = courses[number][0], courses[parent]
        before = next((one for one in theirs if one["step"] == step + 1), None)
        assert first["step"] == step + 1
        assert before is None or first["loss"] == before["loss"]
        own, of_parent = point.swept["config.lr"], rows[parent]["config.lr"]
        assert own == pytest.approx(of_parent * 0.8) or own == pytest.approx(of_parent * 1.25)
        assert {one["rate"] for one in courses[number]} == {own}
    _check_what_is_shown(hpcrun, rows)


def _lines(experiment: ExperimentPaths, number: int) -> list[dict[str, Any]]:
    text = experiment.run(number).attempt(1).metrics.read_text()
    return [json.loads(line) for line in text.splitlines()]


def _check_what_is_shown(hpcrun: Callable[..., Any], rows: list[dict[str, Any]]) -> None:
    parent = rows[3]["search.parent"]
    assert parent in hpcrun("status", "e").stdout
    (status,) = json.loads(hpcrun("status", f"e/{3}", "--json").stdout)
    assert status["parent"] == parent
    assert "parent" not in json.loads(hpcrun("status", "e/0", "--json").stdout)[0]
    (chosen,) = json.loads(hpcrun("status", "e/3", f"parent={parent}", "--json").stdout)
    assert chosen["run"] == 3
    found = json.loads(hpcrun("search", "e", "--json").stdout)
    assert found["runs"][3]["parent"] == parent
    # One that was pruned goes on from what it saved, to its end.
    worst = next(row["run"] for row in rows if row["state"] == "pruned")
    assert "not pruned again" in hpcrun("requeue", worst, "--yes").stderr
    again = hpcrun("submit", "e.yaml", "--wait")
    assert again.returncode == 0, again.stderr
    (status,) = json.loads(hpcrun("status", worst, "--json").stdout)
    assert (status["state"], status["step"]) == ("completed", 40)
    assert "It began at step" in hpcrun("why", worst).stdout
