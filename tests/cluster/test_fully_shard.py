"""Models of FSDP2 on a real Slurm: killed, preempted, and on other numbers of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.ward import PROGRAM, Ward
from tests.testbed import Cluster

pytestmark = [pytest.mark.timeout(900), pytest.mark.usually("24.11")]

STEPS = 30


def _submit(ward: Ward, name: str, *overrides: str, dropout: float, pause: float = 0.4) -> None:
    deepspeed: dict[str, Any] = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    spec = {
        "entry": "sharded.py:train",
        "cluster": "bed",
        "config": {"seed": 1, "total_steps": STEPS, "pause": pause, "dropout": dropout},
        "optimization": {"ema": 0.9, "warmup": 3},
        "deepspeed": deepspeed,
        "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00", "mem": 2000},
        "checkpoint": {"every": 10},
    }
    ward.hpcrun("submit", ward.spec(name, spec), *overrides)


def test_it_comes_back_exactly_and_goes_on_with_other_nodes(slurm: Cluster) -> None:
    ward = Ward(slurm, "sharded")
    ward.get_ready()
    # Dropout is drawn by each rank: a run whose number of ranks changes has none.
    for name, dropout in (("calm", 0.1), ("plain", 0.0)):
        _submit(ward, name, dropout=dropout, pause=0.0)
    ward.wait_for_end(["calm", "plain"])
    calm, plain = ward.step_losses("calm/0"), ward.step_losses("plain/0")
    assert calm != plain

    _submit(ward, "hurt", dropout=0.1)
    (run,) = ward.wait_for_step("hurt", 12)
    ward.kill(run["nodes"][1], f"{PROGRAM}worker", ward.raw_job_id(str(run["job_id"])))
    (run,) = ward.wait("hurt", lambda found: found[0]["attempt"] == 2 and found[0]["step"] >= 15)
    ward.preempt(run["nodes"])
    ward.wait_for_end("hurt", seconds=400)
    kinds = ward.kinds("hurt")
    assert (kinds[0], kinds[-2:]) == ("rank_crash", ["preempted", None]), ward.explain("hurt")
    assert ward.step_losses("hurt/0") == calm

    _submit(ward, "resized", dropout=0.0)
    for step, nodes in ((12, 4), (20, 2)):
        ward.wait_for_step("resized", step)
        ward.hpcrun("cancel", "resized", "--yes")
        _submit(ward, "resized", f"resources.nodes={nodes}", dropout=0.0)
    ward.wait_for_end("resized")
    found = ward.attempts("resized")
    assert [attempt.started["world_size"] for attempt in found] == [2, 4, 2]
    for attempt in found:
        for record in ward.metrics("resized", 0, attempt.number):
            if "ranks" not in record:
                assert record["loss"] == pytest.approx(plain[record["step"]], rel=1e-4)
