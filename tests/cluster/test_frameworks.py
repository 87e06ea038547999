"""A Hugging Face Trainer on a real Slurm; `tests.frameworks.on_slurm` runs more, by hand."""

from __future__ import annotations

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import Ward
from tests.frameworks.test_programs import PROGRAMS, python_of
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(400)


@pytest.mark.usually
def test_accelerates_own_test_script_that_is_killed_and_preempted(slurm: Cluster) -> None:
    """It saves nothing and compares its training with one process's at its end."""
    ward = Ward(slurm, "frameworks")
    spec = {
        "cluster": "bed",
        "entry": ["python", "-m", "accelerate.test_utils.scripts.test_script"],
        "framework": "accelerate",
        "environment": {"python": python_of("frameworks")},
        "resources": {"nodes": 2, "ntasks_per_node": 1, "time": "00:10:00"},
    }
    ward.hpcrun("submit", ward.spec("script", spec), "--new")
    paths = ward.paths("script")

    def trains(attempt: int) -> bool:
        logs = [*paths.attempt(attempt).rank_logs().values()]
        return any("Initialization" in log.read_text() for log in logs)

    until(lambda: trains(1), "attempt 1 to train", 120)
    # Not the shell that looks for it.
    ward.kill(ward.status("script")[0]["nodes"][1], "[a]ccelerate.test_utils.scripts.test_script")
    until(lambda: trains(2), "attempt 2 to train", 120)
    ward.preempt(ward.status("script")[0]["nodes"], 1)
    ward.wait_for_end("script")
    assert ward.kinds("script") == ["rank_crash", "preempted", None], ward.explain("script")
    said = paths.attempt(3).rank_log(0).read_text()
    assert "Num processes: 2" in said
    assert "Training yielded the same results on one CPU or distributed setup" in said
    ward.assert_reconciled("script")


@pytest.mark.usually("22.05")
def test_a_trainer_that_is_preempted_after_a_save(slurm: Cluster) -> None:
    ward = Ward(slurm, "frameworks")
    ward.write("hf_trainer.py", (PROGRAMS / "hf_trainer.py").read_text())
    spec = {
        "cluster": "bed",
        "entry": "hf_trainer.py",
        "framework": "huggingface",
        "environment": {"python": python_of("frameworks")},
        "config": {
            **{"output_dir": "out", "max_steps": 150, "save_steps": 20, "logging_steps": 1},
            **{"per_device_train_batch_size": 2, "report_to": "none"},
        },
        "resources": {"nodes": 2, "ntasks_per_node": 1, "time": "00:10:00"},
    }
    ward.hpcrun("submit", ward.spec("trainer", spec), "--new")
    paths = ward.paths("trainer")
    saved = paths.work / "out/checkpoint-20/trainer_state.json"
    until(saved.exists, "its first save", 120)
    ward.preempt(ward.status("trainer")[0]["nodes"], 1)
    ward.wait_for_end("trainer")
    first, second = ledger.read(paths)
    assert first.cause["kind"] == "preempted"
    assert second.resume is not None
    (argument,) = second.resume["arguments"]
    begun = int(argument.rpartition("checkpoint-")[2])
    assert 20 <= begun < 150
    assert f"ranks 2, from {argument.partition('=')[2]}" in paths.attempt(2).rank_log(0).read_text()
    assert second.end["reached_step"] == 150
    assert (paths.work / "out/model.safetensors").exists()
    ward.assert_reconciled("trainer")
