"""A run of FSDP2 through the session: a rank killed, preempted, and other numbers of ranks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcrun.run.weights import saved_weights
from hpcrun.state import files, ledger, manifest
from hpcrun.state.plan import Entry
from tests.support.place import Place
from tests.support.waiting import until

pytestmark = [pytest.mark.training]

PROGRAM = """
import os, signal, time
import torch
from torch import nn
from hpcrun.state import manifest
from hpcrun.state.node_layout import ScratchPaths

def train(session):
    torch.manual_seed(session.rank)
    blocks = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 4)) for _ in range(2)]
    model = nn.Sequential(*blocks)
    loss = lambda found, wanted: (found - wanted).square().mean()
    # One rank holds all of what the plan divides without `parallel`.
    plan = {"*.0": "colwise", "*.2": "rowwise"}
    engine = session.fully_shard(model, loss=loss, tensor_plan=plan)
    session.restore(engine)

    def read(samples):
        x = torch.tensor(samples).view(-1, 1).repeat(1, 4) % 16 / 16
        return x, x

    for step in session.steps(total=session.config.total):
        session.log({"loss": session.train_batch(step, read)}, step)
        if 0 < session.config.killed <= step and session.attempt == 1 and session.rank == 1:
            # Saves are written behind steps that are shorter.
            if manifest.complete(session.directory / "checkpoints"):
                os.kill(os.getpid(), signal.SIGKILL)
        if step == session.config.preempted and session.attempt == 2:
            (session.directory / "ready").touch()
            while not ScratchPaths(session.scratch).stop.exists():
                time.sleep(0.02)
"""
DEVICES = "0,1,2,3"
ENTRY = Entry("function", module="sharding", function="train", import_root=".")


def _submit(
    place: Place, ranks: int, total: int, killed: int = 0, preempted: int = 0, tensor: int = 1
) -> None:
    place.submit(
        ENTRY,
        # With GPUs asked for, none of DeepSpeed's operators needs compiling.
        resources={"nodes": 1, "ntasks_per_node": ranks, "gpus_per_node": ranks},
        parallel={"tensor": tensor},
        environment={"variables": {}},
        config={"seed": 1, "total": total, "killed": killed, "preempted": preempted},
        optimization={"ema": 0.8, "warmup": 3, "decay": "cosine", "total_steps": 24},
        checkpoint={"every": 4, "keep": 9, "asynchronous": killed > 0},
        recovery={"in_place": 1, "check_replicas": 2, "on_spike": "stop"},
        deepspeed={
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 8 // ranks * tensor,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        },
    )


def _metrics(place: Place, attempt: int) -> dict[int, Any]:
    """Step -> loss, norm of the gradients and learning rate, exactly."""
    return {
        line["step"]: [line[name] for name in ("loss", "gradient_norm", "learning_rate")]
        for line in files.read_lines(place.run.attempt(attempt).metrics)
    }


def _weights(place: Place) -> dict[str, Any]:
    """The newest weights and their average, as exports have them."""
    directory, entry = manifest.complete(place.run.checkpoints)[0]
    found = saved_weights.collect(directory, entry.files)
    plain = {name: each.contiguous() for name, each in found.tensors.items()}
    saved_weights.put_averaged(found, directory)
    return {**plain, **{f"average of {name}": each for name, each in found.tensors.items()}}


def test_killed_preempted_and_on_other_ranks_it_is_as_unhurt(place: Place, tmp_path: Path) -> None:
    (place.code / "sharding.py").write_text(PROGRAM)
    _submit(place, ranks=2, total=24)
    code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
    assert code == 0, said + place.output()
    whole, weights = _metrics(place, 1), _weights(place)
    assert sorted(whole) == list(range(1, 25))
    assert whole[24][0] < whole[1][0]
    place.run.directory.rename(tmp_path / "whole")

    # One rank is killed after step 6, and the job is preempted at step 12: ranks agree a bit later.
    _submit(place, ranks=2, total=24, killed=6, preempted=12)
    supervisor = place.start(CUDA_VISIBLE_DEVICES=DEVICES)
    until(lambda: (place.run.directory / "ready").exists(), timeout=100)
    supervisor.send_signal(signal.SIGTERM)
    code, said = place.end(supervisor, timeout=100)
    assert code == 75, said
    assert place.attempt(1).outcome == "failed"
    first, second = _metrics(place, 1), _metrics(place, 2)
    stopped = max(second)
    assert min(first) == 1
    assert min(second) in (5, 9)
    assert 12 <= stopped <= 19
    # Dropout, order of samples, schedule and clipping: nothing tells that there was a restart.
    assert {**first, **second} == {step: whole[step] for step in range(1, stopped + 1)}
    assert _saved(place)[0] == (stopped, 2)

    ledger.set_intent(place.run, None)
    _submit(place, ranks=2, total=stopped + 2)
    code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
    assert code == 0, said + place.output(attempt=3)
    assert _metrics(place, 3) == {step: whole[step] for step in (stopped + 1, stopped + 2)}

    # 2 -> 4 -> 2 ranks: gradients are added up in another order, with other dropout.
    for attempt, ranks, total in ((4, 4, stopped + 4), (5, 2, 24)):
        ledger.set_intent(place.run, None)
        _submit(place, ranks=ranks, total=total)
        code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
        assert code == 0, said + place.output(attempt=attempt)
        rates = {step: values[2] for step, values in _metrics(place, attempt).items()}
        assert rates == {step: whole[step][2] for step in range(min(rates), total + 1)}
    assert {4, 2} == {size for _, size in _saved(place)}
    found = _weights(place)
    assert found.keys() == weights.keys()
    assert all(torch.allclose(found[name], weights[name], atol=2e-2) for name in found)
    assert "FutureWarning" not in place.output(attempt=2)


def test_a_rank_of_a_tensor_group_is_killed(place: Place, tmp_path: Path) -> None:
    """2 ranks hold each matrix together; then a run of 2 x 2 ranks goes on."""
    (place.code / "sharding.py").write_text(PROGRAM)
    _submit(place, ranks=2, total=8, tensor=2)
    code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
    assert code == 0, said + place.output()
    whole = _metrics(place, 1)
    assert sorted(whole) == list(range(1, 9))
    place.run.directory.rename(tmp_path / "whole")
    _submit(place, ranks=2, total=8, killed=6, tensor=2)
    code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
    assert code == 0, said + place.output(attempt=2)
    assert place.attempt(1).outcome == "failed"
    assert {**_metrics(place, 1), **_metrics(place, 2)} == whole
    assert min(_metrics(place, 2)) == 5
    ledger.set_intent(place.run, None)
    _submit(place, ranks=4, total=10, tensor=2)
    code, said = place.supervise(timeout=100, CUDA_VISIBLE_DEVICES=DEVICES)
    assert code == 0, said + place.output(attempt=3)
    assert sorted(_metrics(place, 3)) == [9, 10]


def _saved(place: Place) -> list[tuple[int, int]]:
    """Steps and numbers of ranks, newest first."""
    found = manifest.complete(place.run.checkpoints)
    return [(entry.step, entry.world_size) for _, entry in found]
