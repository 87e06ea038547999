"""``hpcrun tune`` as it is typed, with a program whose steps take as long as its configuration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import experiment
from hpcrun.tools.perf.on_nodes import trial_log
from tests.support import command
from tests.support.waiting import until

PROGRAM = """
import os, signal, time


class Engine:
    global_steps = 0


def train(session):
    how = session.config.how
    engine = Engine()
    session.restore(engine)
    for step in session.steps(total=100):
        if how == "broken" and step == 2:
            raise NameError("attention is not defined")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep({"fast": 0.02, "stuck": 600}.get(how, 0.1))
        engine.global_steps += 1
        session.log({"loss": 1.0}, step=step)
"""
SPEC = """
name: paced
entry: train.py:train
cluster: local
config: {how: slow, seed: 3}
deepspeed: {train_batch_size: 8, train_micro_batch_size_per_gpu: 8}
estimate: {parameters: 1000}
resources: {ntasks_per_node: 1, cpus_per_task: 1, time: "00:10:00"}
"""
SPACE = "--space", "config.how=slow,fast,broken,killed"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "paced.yaml").write_text(SPEC)
    return tmp_path


def _tune(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.hpcrun("tune", "paced.yaml", *arguments, root=place / "root", cwd=place)


def _data(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert answer.returncode == 0, answer.stderr
    data = json.loads(answer.stdout)
    assert isinstance(data, dict)
    return data


def test_the_fastest_is_found_past_trials_that_fail_and_its_spec_runs(place: Path) -> None:
    found = _data(_tune(place, *SPACE, "config.seed=5", "--json"))
    assert found["best"]["values"] == {"config.how": "fast"}
    assert found["best"]["confirmed"]
    assert 0.02 <= found["best"]["step_seconds"] < 0.1
    told = {one["label"]: one["status"] for one in found["candidates"]}
    assert told["how=broken"] == "rank crash: NameError: attention is not defined"
    assert "SIGKILL" in told["how=killed"]
    assert told["how=slow (as it is)"] == "measured again"
    spec = place / "paced.tuned.yaml"
    assert found["spec"] == str(spec)
    lines = spec.read_text().splitlines()
    assert lines[0].startswith("# Written by hpcrun tune")
    assert "the spec as it was" in lines[3]
    plan = command.hpcrun("plan", "paced.tuned.yaml", "--json", cwd=place, root=place / "root")
    run = json.loads(plan.stdout)["runs"][0]
    assert run["spec"]["config"] == {"how": "fast", "seed": 5}
    # Again: the spec is written anew, in a run of its own; a file of somebody else is kept.
    again = _data(_tune(place, "--space", "config.how=fast,slow", "--json"))
    assert again["run"] == "paced-tune/1"
    spec.write_text("name: mine\n")
    answer = _tune(place, *SPACE)
    assert answer.returncode == 2
    assert "which `hpcrun tune` did not write" in answer.stderr
    assert spec.read_text() == "name: mine\n"


def test_a_dry_run_says_what_is_pruned_and_why_and_writes_nothing(place: Path) -> None:
    micros = "deepspeed.train_micro_batch_size_per_gpu=8,3"
    space = "--space", micros, "--space", "config.how=slow,fast", "--space", "config.more=1"
    found = _data(_tune(place, *space[:4], "--dry-run", "--json"))
    reasons = {one["label"]: one["pruned"] for one in found["candidates"]}
    assert reasons["train_micro_batch_size_per_gpu=8,how=fast"] is None
    assert "no whole numbers fit" in reasons["train_micro_batch_size_per_gpu=3,how=fast"]
    answer = _tune(place, *space, "--dry-run")
    assert answer.returncode == 0
    assert "there is no key config.more" in answer.stdout
    # By the memory model: four bytes a weight are more than a megabyte.
    huge = "estimate.parameters=1B", "resources.mem=1M"
    answer = _tune(place, *SPACE, *huge, "--dry-run")
    assert answer.returncode == 1
    assert "of a node, by estimate" in answer.stderr
    assert not (place / "root").exists()
    assert not (place / "paced.tuned.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("entry=train.py",), "trials are made of a function"),
        (("--sweep", "config.how=a,b"), "tune takes no --sweep"),
        (("--time", "soon"), "accepted is a time"),
        (("--space", "resources.nodes=1,2"), "share one allocation"),
        (("-o", "nowhere/x.yaml"), "there is no directory"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    place: Path, arguments: tuple[str, ...], told: str
) -> None:
    answer = _tune(place, *arguments)
    assert answer.returncode == 2
    assert told in answer.stderr


def test_after_ctrl_c_nothing_is_left_and_what_is_known_is_told(place: Path) -> None:
    arguments = ("tune", str(place / "paced.yaml"), "--space", "config.how=fast,stuck")
    process = command.start(*arguments, root=place / "root")
    trials = experiment(place / "root", "paced-tune").run(0).trials
    until(lambda: any(one.candidate == 2 for one in trial_log.read(trials)), "the trial")
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the fastest so far: how=fast" in stderr
    assert "how=stuck" in stdout
    assert not (place / "paced.tuned.yaml").exists()
    status = command.hpcrun("status", "paced-tune", "--json", root=place / "root")
    assert json.loads(status.stdout)[0]["state"] == "cancelled"
