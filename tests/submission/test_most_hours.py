"""The confirmation above a cost that the cluster profile sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from hpcrun.state.spec.blocks import RunSpec
from hpcrun.submission import most_hours
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.support.typed import Keyboard

SITE = {"name": "site", "confirm_above": {"gpu_hours": 100, "cpu_hours": None}}


class _Spec(RunSpec):
    def __init__(self, **resources: Any) -> None:
        super().__init__({"resources": resources})


def above(*specs: RunSpec, cluster: dict[str, Any] = SITE) -> str | None:
    return most_hours.above_limit((one, cluster) for one in specs)


@pytest.mark.parametrize(
    ("resources", "hours"),
    [
        ({"nodes": 2, "gpus_per_node": 8, "time": "08:00:00"}, "at most 128 GPU-hours"),
        # Spare nodes are allocated too.
        ({"nodes": 1, "spare_nodes": 1, "gpus_per_node": 8, "time": "10:00:00"}, "at most 160 GPU"),
        ({"nodes": 1, "gpus_per_node": 4, "time": "2-00:00:00"}, "at most 192 GPU-hours"),
        (
            {"nodes": 1, "gpus_per_node": 1, "time": "UNLIMITED"},
            "GPU-hours without a limit of time",
        ),
    ],
)
def test_above(resources: dict[str, Any], hours: str) -> None:
    told = above(_Spec(**resources))
    assert told is not None
    assert told.startswith(hours)
    assert "the cluster profile 'site' asks above 100 (confirm_above.gpu_hours)" in told


def test_below_and_without_a_limit() -> None:
    one = _Spec(nodes=1, gpus_per_node=8, time="12:00:00")
    assert above(one) is None
    assert above(one, one) is not None
    processors = _Spec(nodes=100, ntasks_per_node=64, time="2-00:00:00")
    assert above(processors) is None
    only = {"name": "site", "confirm_above": {"gpu_hours": 1, "cpu_hours": 10}}
    told = above(one, processors, cluster=only)
    assert told is not None
    assert "96 GPU-hours" in told
    assert "307,200 CPU-hours" in told
    # Of a plan from before there was such a limit.
    assert above(one, cluster={"name": "site"}) is None
    assert not most_hours.asks({"name": "site"})
    assert not most_hours.asks({"confirm_above": {"gpu_hours": None}})
    assert most_hours.asks({"confirm_above": {"gpu_hours": 0.0}})


@pytest.fixture
def keyboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Keyboard:
    """A profile that lets an hour of one processor pass, and a spec of three such hours."""
    (tmp_path / "clusters").mkdir()
    profile = {"executor": "local", "confirm_above": {"cpu_hours": 1}}
    (tmp_path / "clusters/site.yaml").write_text(json.dumps(profile))
    monkeypatch.setenv("HPCRUN_CLUSTERS", str(tmp_path / "clusters"))
    monkeypatch.chdir(tmp_path)
    text = {"name": "study", "cluster": "site", "entry": ["true"], "config": {"seed": 0}}
    (tmp_path / "study.yaml").write_text(json.dumps(text))
    return Keyboard(tmp_path / "root", capsys)


COST = "at most 3 CPU-hours; the cluster profile 'site' asks above 1 (confirm_above.cpu_hours)"
THREE = ("study.yaml", "--sweep", "config.seed=0,1,2")


def test_plan_and_a_dry_run_say_that_submit_asks(keyboard: Keyboard) -> None:
    assert f"submit asks first: {COST}" in keyboard.type("plan", *THREE).err
    assert f"submit asks first: {COST}" in keyboard.type("submit", *THREE, "-n").err
    assert "asks first" not in keyboard.type("plan", "study.yaml").err


def test_submit_without_a_terminal_wants_to_be_told(keyboard: Keyboard) -> None:
    done = keyboard.type("submit", *THREE, code=2)
    assert f"this would submit 3 runs, {COST}; there is no terminal to ask on" in done.err
    assert "add --yes, or look first with --dry-run" in done.err
    assert not keyboard.root.exists()


def test_the_answer_no_submits_nothing(keyboard: Keyboard, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(what: str, details: str) -> None:
        asked.append(what + details)
        raise click.Abort

    monkeypatch.setattr("hpcrun.cli.submit.confirm", confirm)
    assert "interrupted" in keyboard.type("submit", *THREE, code=130).err
    assert asked == [f"submit 3 runs, {COST}"]
    assert not keyboard.root.exists()


def test_only_what_would_be_submitted_counts(keyboard: Keyboard) -> None:
    done = keyboard.type("submit", *THREE, "-n", "--only", "seed=0")
    assert "1 new, 2 left out by --only" in done.err
    assert "asks first" not in done.err


def test_requeue_asks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    study = Experiment(tmp_path / "root")
    resources = {"nodes": 1, "gpus_per_node": 8, "time": "08:00:00"}
    paths = study.submit((0,), spec={"resources": resources}, job_id="100")
    study.start(0, job_id="100")
    study.end(0, outcome="failed", kind="rank_crash", message="x")
    data = json.loads(paths.plan.read_text())
    data["cluster"]["confirm_above"] = {"gpu_hours": 10}
    paths.plan.write_text(json.dumps(data))
    keyboard = Keyboard(tmp_path / "root", capsys)
    done = keyboard.type("requeue", "study/0", code=2)
    assert "this would requeue 1 run, at most 64 GPU-hours; the cluster profile" in done.err
    assert "requeue asks first: at most 64 GPU-hours" in keyboard.type("requeue", "study", "-n").err
