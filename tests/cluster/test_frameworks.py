"""A Hugging Face Trainer on a real Slurm; `tests.frameworks.on_slurm` runs more, by hand."""

from __future__ import annotations

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import Ward
from tests.frameworks.test_programs import PROGRAMS, python_of
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.usually("22.05")]


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
