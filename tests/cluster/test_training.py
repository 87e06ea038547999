"""The main path: one command, several nodes, a trained model, on both versions of Slurm."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.cluster.workbench import LANGUAGE_MODEL, Workbench
from tests.testbed import Cluster

STAGES = [0, 1, 2, 3]
STAGE, MICRO = "deepspeed.zero_optimization.stage", "deepspeed.train_micro_batch_size_per_gpu"
STEPS = 50
SECONDS = 900

pytestmark = [pytest.mark.timeout(SECONDS), pytest.mark.usually("24.11")]


@dataclass(frozen=True)
class Study:
    """A finished array of runs, and the bytes that left the nodes meanwhile."""

    bench: Workbench
    submitted: dict[str, object]
    sent: dict[str, int]


def _sent(cluster: Cluster) -> dict[str, int]:
    """Bytes that left the nodes, by interface."""
    counters = [cluster.interface_bytes(node) for node in cluster.nodes]
    return {name: sum(node[name][1] for node in counters) for name in ("eth0", "ib0")}


@pytest.fixture(scope="module")
def study(slurm: Cluster) -> Study:
    """ZeRO 0 to 3, and stage 1 with more accumulation of the same global batch, as one array."""
    bench = Workbench(slurm, "study")
    bench.copy_job("language_model.py")
    points = [{STAGE: stage} for stage in STAGES] + [{STAGE: 1, MICRO: 1}]
    config = {**LANGUAGE_MODEL["config"], "total_steps": STEPS}
    sweep = {"points": points, "max_parallel": 2}
    spec = bench.spec("stages", {**LANGUAGE_MODEL, "config": config, "sweep": sweep})
    before = _sent(slurm)
    done = bench.hpcrun("submit", spec, "--wait", "--json", check=False, timeout=SECONDS)
    after = _sent(slurm)
    assert done.returncode == 0, done.stderr + bench.explain("stages")
    return Study(
        bench, json.loads(done.stdout), {name: after[name] - before[name] for name in after}
    )


def test_one_array_trains_all_four_zero_stages(study: Study) -> None:
    states = study.bench.status("stages")
    assert [run["state"] for run in states] == ["completed"] * 5
    assert [run["step"] for run in states] == [STEPS] * 5
    assert [run["swept"][STAGE] for run in states] == [*STAGES, 1]
    assert len({str(run["job_id"]).split("_")[0] for run in states}) == 1
    for run in range(5):
        losses = study.bench.losses("stages", run)
        assert len(losses) == STEPS
        assert losses[-1] <= 0.6 * losses[0]


def test_zero_stages_agree_at_every_step(study: Study) -> None:
    reference = study.bench.losses("stages", 0)
    for run in (1, 2, 3):
        for expected, found in zip(reference, study.bench.losses("stages", run), strict=True):
            assert found == pytest.approx(expected, rel=1e-5)


def test_accumulation_and_micro_batches_agree_at_every_step(study: Study) -> None:
    for run, accumulation in ((1, 2), (4, 8)):
        attempt = study.bench.root / "stages" / "runs" / str(run) / "attempts" / "1"
        final = json.loads((attempt / "deepspeed.json").read_text())
        assert final["gradient_accumulation_steps"] == accumulation
    two, eight = study.bench.losses("stages", 1), study.bench.losses("stages", 4)
    for first, second in zip(two, eight, strict=True):
        assert second == pytest.approx(first, rel=1e-4)


def test_gradients_travel_on_the_fast_network(study: Study) -> None:
    total = sum(study.sent.values())
    assert total >= 25e6
    assert study.sent["ib0"] / total >= 0.95


def test_ranks_have_logs_and_results_are_a_table(study: Study) -> None:
    logs = study.bench.hpcrun("logs", "stages/0", "--json").stdout.splitlines()
    assert {json.loads(line)["rank"] for line in logs} == {0, 1, 2, 3}
    rows = json.loads(study.bench.hpcrun("results", "stages", "--json").stdout)
    assert len(rows) == 5


def test_a_second_submission_finds_nothing_to_do(study: Study) -> None:
    again = study.bench.hpcrun("submit", study.bench.directory / "stages.yaml", "--json")
    assert {run["action"] for run in json.loads(again.stdout)["runs"]} == {"completed"}
