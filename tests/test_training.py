"""Real DeepSpeed training on this machine: the demo, and what getting-started shows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import command, operators

ROOT = Path(__file__).parent.parent
ON_THIS_MACHINE = (
    "cluster=local",
    "resources.nodes=1",
    "resources.gpus_per_node=0",
    "resources.ntasks_per_node=2",
)
Hpcrun = Callable[..., str]

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hpcrun(warm_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Hpcrun:
    """The command line, with one root for all tests."""
    directory = tmp_path_factory.mktemp("training")
    operators.link(warm_operators, directory / "root")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HPCRUN_")
    }

    def call(*arguments: str, cwd: Path = directory) -> str:
        answer = command.hpcrun(
            *(*arguments, "--root", directory / "root"),
            cwd=cwd,
            environment=environment,
            env={"PYTHONPATH": str(ROOT), "HOME": str(directory)},
            timeout=600,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    return call


def _first_and_last_loss(directory: str, attempt: int = 1) -> tuple[float, float]:
    lines = Path(directory, "attempts", str(attempt), "metrics.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    losses = [record["loss"] for record in records if "loss" in record]
    return losses[0], losses[-1]


def test_the_demo(hpcrun: Hpcrun) -> None:
    spec = ["demo", "cluster=local", "config.total_steps=40"]
    hpcrun("submit", *spec, "--sweep", "deepspeed.optimizer.params.lr=1e-3,1e-2", "--wait")
    runs = json.loads(hpcrun("status", "demo", "--json"))
    assert [(run["state"], run["step"]) for run in runs] == [("completed", 40)] * 2
    rows = json.loads(hpcrun("results", "demo", "--format", "json"))
    losses = [row["eval/loss"] for row in rows]
    assert losses[0] != losses[1]
    for run in runs:
        first, last = _first_and_last_loss(run["directory"])
        assert last < 0.75 * first
    assert re.match(r"0 r0 \| ", hpcrun("logs", "demo", "--tail", "3"))


def test_the_example_of_getting_started(hpcrun: Hpcrun, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "getting-started.md").read_text()
    for name, language in (("finetune.yaml", "yaml"), ("train.py", "python")):
        shown = re.search(rf"`{re.escape(name)}`.*?\n```{language}\n(.*?)```", text, re.DOTALL)
        assert shown
        (tmp_path / name).write_text(shown[1])
    planned = hpcrun("plan", "finetune.yaml", "cluster=slurm", cwd=tmp_path)
    assert "batch 256 = micro 4 x accumulation 4" in planned

    arguments = [*ON_THIS_MACHINE, "resources.cpus_per_task=1", "config.total_steps=60"]
    lr = ["--sweep", "deepspeed.optimizer.params.lr=3e-3"]
    hpcrun("run", "finetune.yaml", *arguments, *lr, cwd=tmp_path)
    [run] = json.loads(hpcrun("status", "finetune", "--json"))
    assert (run["state"], run["step"]) == ("completed", 60)
    first, last = _first_and_last_loss(run["directory"])
    assert last < 0.5 * first


def test_a_drill(hpcrun: Hpcrun) -> None:
    """Several faults on one run: it comes back each time, and says what each cost.

    A killed rank alone, which `corrupt-checkpoint` begins with, by hand.
    """
    changes = ["config.total_steps=400", "config.evaluate_every=0", "checkpoint.every=25"]
    nodes = ["resources.nodes=2", "resources.spare_nodes=1", "resources.ntasks_per_node=1"]
    expected = {
        "corrupt-checkpoint": ("rank_crash", "restart"),
        "lose-node": ("node_failure", "restart"),
    }
    if os.environ.get("HPCRUN_THOROUGH") == "1":
        expected = {"kill-rank": ("rank_crash", "restart"), **expected}
    asked = [f"--fault={fault}" for fault in expected]
    said = hpcrun("drill", "demo", "cluster=local", *changes, *nodes, *asked, "--steps=2", "--json")
    faults = {one["fault"]: one for one in json.loads(said)["faults"]}
    assert all(one["came_back"] for one in faults.values())
    assert {name: (one["cause"], one["action"]) for name, one in faults.items()} == expected
    if "kill-rank" in faults:
        assert 0 <= faults["kill-rank"]["lost_steps"] < 2 * 25
    assert 25 <= faults["corrupt-checkpoint"]["lost_steps"] < 3 * 25
    why = hpcrun("why", "demo-drill")
    assert "was set aside: is damaged" in why
    assert "hpcrun restarted it in place, with local2 for local1" in why
