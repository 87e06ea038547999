"""Trains one small model in many ways, each on ranks of its own, beside one process.

    python -m tests.run.parallel.trials < TRIALS    (a list of `Trial`s in JSON)

Prints a line of JSON a trial. Ranks are forks of a process that has imported what training imports,
so that a trial takes a second or two. The engine is that of `session.initialize`, without a job.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 8
BATCH = 8
LENGTH = 8
RATE = 0.02
# Of one trial.
PATIENCE = 120.0


@dataclass(frozen=True)
class Trial:
    """One way to train."""

    parallel: dict[str, int] = field(default_factory=dict)
    stage: int = 0
    offload: dict[str, str] = field(default_factory=dict)
    """``optimizer`` and ``param`` -> the device."""
    accumulation: int = 1
    precision: str = "fp32"
    """Or ``bf16``, or ``torch_autocast``."""
    clipping: float = 0.05
    experts: bool = False
    """The model has mixture-of-experts layers; one process does not train it."""
    ranks: int = 4
    broken: str | None = None
    """The fault: ``sequence`` is left out of the group that ZeRO 3 partitions over, or ``flip``
    turns a bit of rank 2's weights before the fifth step."""

    @property
    def replicas(self) -> int:
        """Ranks that see different samples."""
        found = self.ranks
        for axis, size in self.parallel.items():
            found //= 1 if axis == "expert" else size
        return found

    def deepspeed(self) -> dict[str, Any]:
        """Its DeepSpeed configuration."""
        zero: dict[str, Any] = {"stage": self.stage, "stage3_param_persistence_threshold": 10}
        zero |= {f"offload_{what}": {"device": device} for what, device in self.offload.items()}
        params = {"lr": RATE, "weight_decay": 0.01, "torch_adam": True}
        config: dict[str, Any] = {
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": BATCH // self.replicas // self.accumulation,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": self.clipping,
            "zero_optimization": zero,
            "zero_force_ds_cpu_optimizer": False,
            "optimizer": {"type": "AdamW", "params": params},
        }
        if self.precision == "torch_autocast":
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        elif self.precision != "fp32":
            config[self.precision] = {"enabled": True}
        return config


def run(trials: list[Trial]) -> None:
    """Run them one after the other and print what came out."""
    import torch

    torch.set_num_threads(1)
    # No rank is to import anything by itself.
    for name in _of_ranks(Trial(stage=3, ranks=2)).get("modules", ()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for trial in trials:
        began = time.perf_counter()
        found = _of_ranks(trial)
        found.pop("modules", None)
        print(json.dumps({**found, "seconds": time.perf_counter() - began}), flush=True)


def _of_ranks(trial: Trial) -> dict[str, Any]:
    """Return the answer of rank 0, or the shortest ``error`` of any rank."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            fork.Process(target=_rank, args=(trial, rank, Path(folder)))
            for rank in range(trial.ranks)
        ]
        for each in ranks:
            each.start()
        deadline = time.monotonic() + PATIENCE
        for each in ranks:
            each.join(max(0.1, deadline - time.monotonic()))
        for each in ranks:
            each.kill()
            each.join()
        files = [Path(folder, f"{rank}.json") for rank in range(trial.ranks)]
        told = [json.loads(each.read_text()) if each.exists() else {} for each in files]
    errors = [each["error"] for each in told if "error" in each]
    if errors or not all(told):
        return {"error": min(errors, key=len) if errors else "a rank hung or died"}
    found: dict[str, Any] = told[0]
    return found


def _rank(trial: Trial, rank: int, folder: Path) -> None:
    """Be a rank; its answer is a file."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": trial.ranks}
    os.environ.update({name: str(value) for name, value in names.items()}, OMP_NUM_THREADS="1")
    os.environ["LOCAL_WORLD_SIZE"] = str(trial.ranks)
    with Path(folder, f"{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            import deepspeed
            import torch

            store = f"file://{folder}/store"
            torch.distributed.init_process_group(
                "gloo", init_method=store, rank=rank, world_size=trial.ranks
            )
            deepspeed.init_distributed()
            before = set(sys.modules)
            answer = _train(trial, rank)
            answer["modules"] = sorted(set(sys.modules) - before)
        except BaseException as error:  # whatever it is, it is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        partial = Path(folder, f"{rank}.partial")
        partial.write_text(json.dumps(answer))
        partial.rename(folder / f"{rank}.json")
        os._exit(0)


def _train(trial: Trial, rank: int) -> dict[str, Any]:
    import torch

    from hpcrun.run.health.replica_check import ReplicaCheck
    from hpcrun.run.parallel import engine_setup, expert_layer, train_batch
    from hpcrun.run.parallel.rank_layout import RankLayout
    from hpcrun.run.rank.collectives import Collectives
    from tests.run.parallel import trial_model

    layout = RankLayout(trial.parallel, trial.ranks)
    expert_layer._size = lambda: layout.experts
    if trial.broken == "sequence":
        engine_setup._partition = lambda config, layout: "data"
    torch.manual_seed(0)
    model, loss = trial_model.build(experts=trial.experts), trial_model.loss
    if trial.experts:
        model, loss = trial_model.with_loss(model), None  # type: ignore[assignment]
    alone = [] if trial.experts else _alone(trial)
    arguments = {"config": trial.deepspeed(), "model_parameters": list(model.parameters())}
    engine, *_ = engine_setup.initialize(model, loss, arguments, layout)
    check = ReplicaCheck(Collectives(rank, trial.ranks), layout, f"n{rank // 2 + 1}", 2)

    def read(numbers: range) -> tuple[Any, Any]:
        rows = trial_model.text(numbers, LENGTH)
        size, place = layout.size["sequence"], layout.place(rank, "sequence")
        parts = (each.chunk(size, dim=1)[place] for each in (rows[:, :-1], rows[:, 1:]))
        inputs, labels = (each.contiguous() for each in parts)
        return inputs, labels

    micro = BATCH // trial.replicas // trial.accumulation
    own = layout.place(rank, "data")
    losses = []
    for step in range(STEPS):
        if trial.broken == "flip" and step == 4 and rank == 2:
            next(engine.module.parameters()).data.view(torch.int32).view(-1)[0] ^= 1
        firsts = [
            step * BATCH + (turn * trial.replicas + own) * micro
            for turn in range(trial.accumulation)
        ]
        found = train_batch.train_batch(
            engine, iter([read(range(first, first + micro)) for first in firsts])
        )
        losses.append(_mean(found))
        check.after_step(engine, step + 1)
    held = _mean(train_batch.eval_batch(engine, [read(range(900, 902))]))
    return {"losses": losses, "alone": alone, "held": held}


def _mean(loss: Any) -> float:
    """Return a loss as the mean over all ranks."""
    import torch

    found = loss.detach().float().clone()
    torch.distributed.all_reduce(found)
    return float(found) / torch.distributed.get_world_size()


def _alone(trial: Trial) -> list[float]:
    """Train in this process, in fp32; the losses."""
    import torch

    from tests.run.parallel import trial_model

    torch.manual_seed(0)
    model, losses = trial_model.build(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        rows = trial_model.text(range(step * BATCH, (step + 1) * BATCH), LENGTH)
        found = trial_model.loss(model(rows[:, :-1]), rows[:, 1:])
        optimizer.zero_grad()
        found.backward()
        if trial.clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), trial.clipping)
        optimizer.step()
        losses.append(found.item())
    return losses


if __name__ == "__main__":
    run([Trial(**each) for each in json.load(sys.stdin)])
