"""The four forms of an entry on two nodes: stopped half-way, and going on after resubmission."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ward import Ward
from tests.cluster.workbench import Workbench
from tests.testbed import Cluster

FORMS = Path(__file__).parent / "forms"
STEPS = 40

BASE: dict[str, Any] = {
    "cluster": "bed",
    "config": {"total_steps": STEPS, "pause": 0.15},
    "deepspeed_config": "ds_zero1.json",
    "deepspeed": {"train_batch_size": 16, "gradient_accumulation_steps": "auto"},
    "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00"},
    "checkpoint": {"every": 5},
    "objective": {"metric": "loss", "mode": "min"},
}
USERS_JSON = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def bench(slurm: Cluster) -> Workbench:
    bench = Workbench(slurm, "forms")
    prepare(bench)
    return bench


def prepare(bench: Workbench) -> None:
    """Lay out the programs and the DeepSpeed JSON."""
    for path in FORMS.glob("*.py"):
        bench.write(path.name, path.read_text())
    bench.write("ds_zero1.json", json.dumps(USERS_JSON))


def form(bench: Workbench, kind: str) -> dict[str, Any]:
    """The spec of one form."""
    flags = {"width": 32, "deepspeed": "${hpcrun:deepspeed_config}"}
    own = {"output_dir": "${hpcrun:directory}/output", "verbose": True}
    match kind:
        case "function":
            return {
                **BASE,
                "entry": "function:train",
                "config": {**BASE["config"], "model": {"width": 32}, "seed": 3},
            }
        case "script":
            return {
                **BASE,
                "entry": "script.py",
                "config": {**BASE["config"], **flags, **own},
                "recovery": {"resume_args": ["--resume=latest"]},
            }
        case "command":
            values = {**BASE["config"], **flags, **own}
            arguments = [f"--{key}={value}" for key, value in values.items() if value is not True]
            return {
                **BASE,
                "entry": ["python", "script.py", "--verbose", *arguments],
                "recovery": {"resume_args": ["--resume=latest"]},
            }
        case _:
            return {**BASE, "entry": "loop.py", "config": {**BASE["config"], **flags}}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("function", marks=pytest.mark.usually),
        pytest.param("script", marks=pytest.mark.usually),
        pytest.param("command", marks=pytest.mark.usually),
        pytest.param("loop", marks=pytest.mark.usually("22.05")),
    ],
)
def test_a_form_stopped_half_way_goes_on_after_resubmission(bench: Workbench, kind: str) -> None:
    spec = bench.spec(f"form-{kind}", form(bench, kind))
    bench.hpcrun("submit", spec)
    wait_for_step(bench, f"form-{kind}", 12)
    bench.hpcrun("cancel", f"form-{kind}", "--yes")
    stopped = bench.status(f"form-{kind}")[0]
    assert stopped["state"] == "cancelled"
    assert stopped["step"] < STEPS

    done = bench.hpcrun("submit", spec, "--wait", check=False)
    assert done.returncode == 0, done.stderr + bench.explain(f"form-{kind}")
    final = bench.status(f"form-{kind}")[0]
    ended = (final["state"], final["attempt"], final["step"])
    assert ended == ("completed", 2, STEPS), bench.explain(f"form-{kind}")
    first, second = (bench.metrics(f"form-{kind}", 0, attempt) for attempt in (1, 2))
    assert first[0]["step"] == 1
    assert second[0]["step"] % 5 == 1
    assert 11 <= second[0]["step"] <= first[-1]["step"] + 1
    replayed = {record["step"]: record["loss"] for record in first}
    for record in second:
        if record["step"] in replayed:
            assert record["loss"] == replayed[record["step"]]
    beginning, end = first[:8], second[-8:]
    assert sum(record["loss"] for record in end) < sum(record["loss"] for record in beginning)


@pytest.mark.usually
def test_scripts_and_loops_that_are_preempted_go_on(slurm: Cluster) -> None:
    """A script hears a signal of its own and starts again with its flags; a loop needs neither."""
    ward = Ward(slurm, "forms")
    prepare(ward)
    script = form(ward, "script")
    script["recovery"]["stop_signal"] = "SIGUSR1"
    for name, spec in (("own", script), ("three", form(ward, "loop"))):
        spec["config"]["pause"] = 0.4
        ward.hpcrun("submit", ward.spec(name, spec))
    running = ward.wait_for_step(["own", "three"], 12)
    nodes = {node for run in running for node in run["nodes"]}
    ward.preempt(sorted(nodes))
    ward.wait_for_end(["own", "three"])
    for name in ("own", "three"):
        assert ward.kinds(name) == ["preempted", None]
        first, second = (ward.metrics(name, 0, attempt) for attempt in (1, 2))
        steps = [record["step"] for record in [*first, *second]]
        assert steps == list(range(1, STEPS + 1))


@pytest.mark.usually("22.05")
def test_a_script_that_knows_nothing_of_hpcrun_runs_unmodified(bench: Workbench) -> None:
    """On a site whose profile names no interface: all nodes take the one named as InfiniBand."""
    bench.write("configs/clusters/unnamed.yaml", "executor: slurm\nresources: {mem: 6000}\n")
    spec = bench.spec(
        "plain",
        {
            "cluster": "unnamed",
            "entry": "plain.py",
            "resources": {"nodes": 2, "ntasks_per_node": 2, "time": "00:05:00"},
        },
    )
    done = bench.hpcrun("submit", spec, "--wait", check=False)
    assert done.returncode == 0, done.stderr + bench.explain("plain")
    logs = bench.hpcrun("logs", "plain").stdout
    for rank in range(4):
        assert f"rank {rank} of 4 has 6" in logs
    why = bench.hpcrun("why", "plain").stdout
    assert "ranks talk over ib0, for its name: fabric.fast_interface" in why
    launch = json.loads((bench.root / "plain/runs/0/attempts/1/launch.json").read_text())
    assert [node["interface"] for node in launch["nodes"]] == ["ib0", "ib0"]


def wait_for_step(bench: Workbench, name: str, step: int, seconds: float = 240) -> None:
    """Wait until the run has logged a step."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run = bench.status(name)[0]
        if run["step"] is not None and run["step"] >= step:
            return
        assert run["state"] not in ("failed", "completed", "cancelled"), bench.explain(name)
        time.sleep(0.5)
    pytest.fail(f"{name} did not reach step {step}: {bench.explain(name)}")
